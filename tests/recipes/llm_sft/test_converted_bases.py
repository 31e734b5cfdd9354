"""Bases that transformers 5 converts when it loads them: trained as the installed version computes them, exported as they are released."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.config import resolve
from overtone.finetune.exporting import export
from overtone.finetune.modeling import loading, lora_adapters
from overtone.recipes.language.model_loading import load_for_generation, load_for_training
from overtone.recipes.llm_sft.options import Options
from overtone.recipes.transformers_release import is_old
from tests.launch.launching import launch
from tests.recipes.llm_sft import families, test_quantized_bases, tiny_runs

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": tiny_runs.POSITIONS,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": {"num_key_value_heads": None},
    "hrm_text": {"head_dim": 8},
}
"""Stacked experts, those with renamed modules, a renamed head, and a tensor that is divided into several layers."""
DEEPSEEK = {
    "n_routed_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 8,
    "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "rope_scaling": None}
OTHERS = {"deepseek_v3": DEEPSEEK, "gpt_oss": GPT_OSS}
"""Experts beside shared ones and other layers of the same names, and experts that are stored as one tensor [E, in, out]."""
STEPS = ("train.steps", "3")


def write_base(folder: Path, kind: str) -> Path:
    tokenizer = families.tokenizer("chatml")
    torch.manual_seed(0)
    given = {"vocab_size": len(tokenizer), **SHAPE, **{**KINDS, **OTHERS}[kind]}
    config = AutoConfig.for_model(kind, **{key: value for key, value in given.items() if value is not None})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def requires(kind: str) -> None:
    if kind == "hrm_text" and is_old(version("transformers")):
        pytest.skip("transformers 4 does not know this type")


def trained_tensors(run: Path) -> dict[str, Tensor]:
    with rank_shards.open_shards(checkpoint.find(run)) as (read, shapes):
        return {name: read(name, None).clone() for name in shapes if not name.startswith("optimizer.")}


def load_stock(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


QUICK_FULL, QUICK_LORA = "qwen3_moe", "mixtral"


def cases(quick: str, kinds: Iterable[str] = KINDS) -> list[Any]:
    """All kinds, of which only one is tried by the quick tests."""
    return [kind if kind == quick else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize("kind", cases(QUICK_FULL))
def test_an_export_has_the_released_tensors_with_the_trained_values(kind: str, tmp_path: Path) -> None:
    requires(kind)
    base = write_base(tmp_path / "base", kind)
    run = tiny_runs.trained(tmp_path, STEPS, tiny_runs.FULL)
    folder = export.export(run, tmp_path / "export")
    before, after = (load_file(each / "model.safetensors") for each in (base, folder))
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in before.items()}
    if kind in ("qwen3_moe", "mixtral"):
        assert sum(".experts." in name for name in after) == 2 * 4 * 3, "one tensor for each matrix of each expert"
    expected, found = trained_tensors(run), load_stock(folder).state_dict()
    assert len(expected) > 8 and all(torch.equal(found[name], value) for name, value in expected.items())
    half = load_file(export.export(run, tmp_path / "half", strength=0.5) / "model.safetensors")
    assert all(torch.allclose(half[name], (before[name] + after[name]) / 2, atol=1e-6) for name in half)


@pytest.mark.parametrize("kind", cases(QUICK_LORA, [*KINDS, *OTHERS]))
def test_merged_adapters_are_those_that_peft_loads(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Experts are adapted whether they are layers or one parameter, and so are the layers beside them."""
    from peft import AutoPeftModelForCausalLM

    requires(kind)
    base = write_base(tmp_path / "base", kind)
    run = tiny_runs.trained(tmp_path, STEPS, ("train.lr", "5e-2"), ("model.lora", "{rank: 4}"))
    merged = export.export(run, tmp_path / "merged")
    adapter = export.export(run, tmp_path / "adapter", adapter_only=True)
    before, after = (load_file(each / "model.safetensors") for each in (base, merged))
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in before.items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    matrices = {name for name, value in before.items() if value.dim() > 1 and "bias" not in name}
    assert {name for name in matrices if "experts" in name or "attn" in name} <= changed <= matrices
    one_parameter = kind == "gpt_oss" or (not is_old(version("transformers")) and any(".experts." in name for name in before))
    assert ("peft 0.19 or newer" in capsys.readouterr().err) == one_parameter
    ids = torch.arange(1, 30).unsqueeze(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        peft_model = AutoPeftModelForCausalLM.from_pretrained(adapter, dtype=torch.float32)
    adapters = {name for name in trained_tensors(run) if lora_adapters.is_adapter(name)}
    assert len([name for name, _ in peft_model.named_parameters() if ".lora_" in name]) == len(adapters) > 7
    with torch.no_grad():
        plain, found, expected = (model(ids).logits for model in (load_stock(base), load_stock(merged), peft_model))
    assert torch.allclose(found, expected, atol=1e-4) and not torch.allclose(found, plain, atol=1e-2)


def test_a_bias_that_chooses_experts_is_read_in_its_precision(tmp_path: Path) -> None:
    """A buffer of DeepSeek-V3, without which each token would be sent to other experts. transformers 4 rounds it, as stock loading does."""
    base = write_base(tmp_path, "deepseek_v3")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    stored = {**load_file(base / "model.safetensors"), name: torch.tensor([0.1, 0.2, 0.30001, 0.4])}
    save_file(stored, base / "model.safetensors", {"format": "pt"})
    test_quantized_bases.edit_config(base, dtype="bfloat16")
    stock = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).state_dict()[name]
    loaded = load_for_training(resolve("llm_sft", Options, [], [("model.source", str(base))]))
    loading.materialise(loaded.model, base, loaded.buffers, torch.device("cpu"), 0, layouts=loaded.layouts)
    found = loaded.model.get_buffer(name)
    assert found.dtype == stock.dtype and torch.equal(found, stock) and found.std() > 0.1
    assert is_old(version("transformers")) or torch.equal(found, stored[name])


def quantize(base: Path) -> None:
    """Store every expert in fp8, with a scale for each block of it."""
    tensors = load_file(base / "model.safetensors")
    high, wide = test_quantized_bases.BLOCK
    for name, value in [each for each in tensors.items() if ".experts." in each[0]]:
        rows, columns = value.shape
        scales = torch.rand(-(-rows // high), -(-columns // wide)) + 0.5
        spread = scales.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
        tensors |= {name: (value / spread).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    test_quantized_bases.edit_config(base, dtype="float32", quantization_config=test_quantized_bases.FP8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_experts_in_fp8_are_trained_as_their_dequantized_weights(kind: str, tmp_path: Path) -> None:
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    quantize(write_base(quantized / "base", kind))
    test_quantized_bases.write_plain(quantized / "base", plain / "base")
    runs = [tiny_runs.trained(folder, STEPS, tiny_runs.FULL) for folder in (quantized, plain)]
    found, expected = map(test_quantized_bases.losses, runs)
    assert len(found) == 3 and found == expected
    weights = [load_file(export.export(run, run.parent / "export", dtype="fp32") / "model.safetensors") for run in runs]
    assert weights[0].keys() == weights[1].keys() and all(torch.equal(weights[0][name], value) for name, value in weights[1].items())
    ids = torch.arange(1, 30).unsqueeze(0)
    with torch.no_grad():
        stock, dequantized = load_stock(plain / "base")(ids).logits, load_for_generation(quantized / "base")[0](ids).logits
        assert torch.allclose(dequantized, stock, atol=1e-4) and stock.std() > 0.1
    load_stock(quantized / "export")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"model.lora": "{rank: 4}", "train.lr": 5e-2}], ids=["full", "lora"])
def test_a_run_resumes_on_another_number_of_processes(tmp_path: Path, changes: dict[str, object]) -> None:
    """Each of two ranks reads two of the four experts, or of their adapters, also from a checkpoint of one process."""
    base = write_base(tmp_path / "base", "qwen3_moe")
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in tiny_runs.rows()))
    given: dict[str, object] = {
        "model.source": base, "data.train": data, "train.precision": "fp32", "train.global_batch_tokens": 60, "train.micro_tokens": 90,
        "train.lr": 1e-2, "train.warmup": 0, "train.schedule": "constant", "log.trackers": "[]", "checkpoint.every": 2,
        **changes,
    }  # fmt: skip

    def train(run: str, processes: int, steps: int) -> None:
        chosen = {**given, "run.dir": tmp_path / run, "train.steps": steps, "parallel.strategy": "fsdp" if processes > 1 else "ddp"}
        arguments = [text for key, value in chosen.items() for text in (f"--{key}", str(value))]
        launch("cpu", processes, "finetune/train.py", "--recipe", "llm_sft", *arguments)

    train("alone", 1, 4)
    train("sharded", 2, 2)
    train("sharded", 1, 3)
    train("sharded", 2, 4)
    found, expected = (test_quantized_bases.losses(tmp_path / run) for run in ("sharded", "alone"))
    assert found == pytest.approx(expected, rel=1e-4) and expected[0] - expected[-1] > 0.05
    weights = [load_file(export.export(tmp_path / run, tmp_path / f"{run}-export") / "model.safetensors") for run in ("sharded", "alone")]
    assert weights[0].keys() == load_file(base / "model.safetensors").keys()
    assert all(torch.allclose(weights[0][name], value, atol=2e-3) for name, value in weights[1].items())
