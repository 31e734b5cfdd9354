"""python -m tests.real.smollm2_folder GGUF FOLDER: a Hugging Face folder of a SmolLM2, dequantized from its GGUF.

Needs the package `gguf`. The weights become bf16, the type in which they were released.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from overtone.finetune.errors import UserError, catch_user_errors
from tests.real.smollm2_tokenizer import GgufTokenizer, check_tokenizer, read_gguf_tokenizer, write_tokenizer

OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def make_config(fields: Any, tokenizer: GgufTokenizer) -> dict[str, Any]:
    """config.json of a Llama with tied embeddings."""

    def get(key: str) -> Any:
        return fields[key].contents()

    if get("general.architecture") != "llama":
        raise UserError(f"the GGUF has the architecture {get('general.architecture')!r}; the builder knows 'llama'")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokenizer.tokens),
        "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": get("llama.attention.head_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        "head_dim": get("llama.rope.dimension_count"),
        "max_position_embeddings": get("llama.context_length"),
        "rms_norm_eps": round(get("llama.attention.layer_norm_rms_epsilon"), 10),  # 1e-5 in 32 bits
        "rope_theta": get("llama.rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.begin,
        "eos_token_id": tokenizer.end,
        "pad_token_id": tokenizer.padding,
        "dtype": "bfloat16",
    }


def undo_rotary_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows [out, in] of a query or key projection in transformers' order: in a GGUF the two halves of each head alternate."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def read_weights(reader: Any, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """transformers' name → weight in bf16. Raises `UserError` for a tensor that Llama does not have."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))
        name = OUTER.get(tensor.name)
        if name is None:
            block, number, part, *last = tensor.name.split(".")
            if block != "blk" or part not in INNER or last != ["weight"]:
                raise UserError(f"the GGUF has the tensor {tensor.name}, which the builder does not know")
            name = f"model.layers.{number}.{INNER[part]}.weight"
            value = undo_rotary_order(value, heads[part]) if part in heads else value
        weights[name] = value.to(torch.bfloat16).contiguous()
    expected = len(OUTER) + len(INNER) * config["num_hidden_layers"]
    if len(weights) != expected:
        raise UserError(f"the GGUF has {len(weights)} tensors; a Llama with tied embeddings has {expected}")
    return weights


def main(argv: list[str]) -> int:
    source, folder = map(Path, argv)
    reader = GGUFReader(source)
    tokenizer = read_gguf_tokenizer(reader.fields)
    config = make_config(reader.fields, tokenizer)
    folder.mkdir()
    save_file(read_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    stops = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(stops, indent=2), encoding="utf-8")
    write_tokenizer(tokenizer, folder)
    check_tokenizer(tokenizer, folder)
    return 0


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
