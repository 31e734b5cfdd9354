"""Tiny configs of the architectures that the sweep tries, with thresholds that its rows pass."""

from __future__ import annotations

from typing import Any

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
}
"""Of every architecture, unless its own changes say otherwise; None removes a key."""
OWN_HEAD: dict[str, Any] = {"head_dim": None}
"""For configs that derive the size of a head."""
NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
"""Training applies a model's own dropout, so that its loss is not that of the rows."""
ORIGINAL = 64
"""Positions of the original model of rotary types that change above: half of the rows are longer."""
MIXER: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
MULTI_LATENT: dict[str, Any] = {
    **OWN_HEAD,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "tie_word_embeddings": False,
}


def scaled(kind: str, **parameters: Any) -> dict[str, Any]:
    """A Llama with a rotary type."""
    return {**OWN_HEAD, "model_type": "llama", "rope_scaling": {"rope_type": kind, **parameters}}


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {**OWN_HEAD, "model_type": "llama"},
    "llama, linear": scaled("linear", factor=4.0),
    "llama, dynamic": {**scaled("dynamic", factor=4.0), "max_position_embeddings": ORIGINAL},
    "llama, yarn": scaled("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL),
    "llama, llama3": scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
    "phi3, longrope": {
        **OWN_HEAD,
        "model_type": "phi3",
        "original_max_position_embeddings": ORIGINAL,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + place / 10 for place in range(8)],
            "long_factor": [2.0 + place for place in range(8)],
        },
    },
    "mistral": {**OWN_HEAD, "model_type": "mistral", "sliding_window": 16},
    "qwen2": {**OWN_HEAD, "model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "phi": {**OWN_HEAD, "model_type": "phi", "tie_word_embeddings": False},
    "phi3": {**OWN_HEAD, "model_type": "phi3", "sliding_window": 16},
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2", "sliding_window": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": {"model_type": "gemma3_text", "sliding_window": 16, "query_pre_attn_scalar": 16},
    "granite": {**OWN_HEAD, "model_type": "granite", "logits_scaling": 4.0},
    "cohere": {**OWN_HEAD, "model_type": "cohere"},
    "cohere2": {**OWN_HEAD, "model_type": "cohere2", "sliding_window": 16},
    "olmo2": {**OWN_HEAD, "model_type": "olmo2", "num_key_value_heads": 4},
    "stablelm": {**OWN_HEAD, "model_type": "stablelm"},
    "starcoder2": {**OWN_HEAD, "model_type": "starcoder2", "sliding_window": 16},
    "smollm3": {**OWN_HEAD, "model_type": "smollm3", "no_rope_layers": [1, 0]},
    "glm4": {"model_type": "glm4"},
    "ernie4_5": {"model_type": "ernie4_5"},
    "exaone4": {"model_type": "exaone4", "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neox": {**OWN_HEAD, "model_type": "gpt_neox", "num_key_value_heads": None, "tie_word_embeddings": False},
    "gpt2": {**OWN_HEAD, "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, **NO_DROPOUT},
    "gptj": {**OWN_HEAD, "model_type": "gptj", "n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "tie_word_embeddings": False},
    "opt": {**OWN_HEAD, "model_type": "opt", "ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0},
    "falcon": {**OWN_HEAD, "model_type": "falcon", "num_kv_heads": 2, "new_decoder_architecture": True},
    "bloom": {**OWN_HEAD, "model_type": "bloom", "n_head": 4, "n_layer": 2},
    "mpt": {**OWN_HEAD, "model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2},
    "llama4_text": {
        "model_type": "llama4_text",
        "attention_chunk_size": 32,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
        "interleave_moe_layer_step": 1,
        "no_rope_layers": [1, 0],
        "tie_word_embeddings": False,
    },
    "mixtral": {**OWN_HEAD, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    "qwen2_moe": {**OWN_HEAD, "model_type": "qwen2_moe", **EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "moe_intermediate_size": 32},
    "olmoe": {**OWN_HEAD, "model_type": "olmoe", **EXPERTS, "tie_word_embeddings": False},
    "granitemoe": {**OWN_HEAD, "model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": {"model_type": "deepseek_v3", **MULTI_LATENT},
    "qwen3_next": {
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention"],
        **EXPERTS,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "lfm2": {**OWN_HEAD, "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "bamba": {**OWN_HEAD, "model_type": "bamba", "attn_layer_indices": [1], **MIXER},
    "falcon_h1": {"model_type": "falcon_h1", "mamba_d_ssm": 64, **MIXER, "mamba_n_heads": 4, "lm_head_multiplier": 0.5},
    "mamba": {"model_type": "mamba", "state_size": 8, "head_dim": None, "num_attention_heads": None, "num_key_value_heads": None},
}
