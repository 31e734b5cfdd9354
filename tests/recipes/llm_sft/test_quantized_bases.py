"""Quantized bases, from the config to an export: the same numbers as from their dequantized weights, or a refusal before any work."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from overtone.finetune.__main__ import main
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.modeling import loading
from overtone.recipes.language.model_loading import load_for_generation
from tests.recipes.llm_sft import tiny_runs

BLOCK = (24, 20)
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [*BLOCK]}


def write_fp8(folder: Path) -> Path:
    """A tiny Qwen3 whose linear layers are in fp8, in blocks that do not divide them."""
    base = tiny_runs.write_base(folder)
    tensors: dict[str, Tensor] = {}
    for name, value in load_file(base / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value.to(torch.bfloat16)
            continue
        rows, columns = value.shape
        scales = torch.rand(-(-rows // BLOCK[0]), -(-columns // BLOCK[1])) + 0.5
        spread = scales.repeat_interleave(BLOCK[0], 0)[:rows].repeat_interleave(BLOCK[1], 1)[:, :columns]
        tensors |= {name: (value / spread).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    edit_config(base, dtype="bfloat16", quantization_config=FP8)
    return base


def edit_config(base: Path, **keys: Any) -> None:
    path = base / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def write_plain(base: Path, folder: Path) -> Path:
    """The same model with dequantized weights, in fp32."""
    shutil.copytree(base, folder)
    with loading.open_base(base) as read:
        weights = {name: read(name, None).float().clone() for name in loading.find_tensors(base)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, dtype="float32", quantization_config=None)
    return folder


def losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().split("\n") if line]
    return [event["loss"] for event in events if event["event"] == "step"]


@pytest.mark.parametrize("overrides", [(), (("model.lora", "{rank: 4}"),)], ids=["full", "lora"])
def test_training_on_fp8_equals_training_on_its_dequantized_weights(overrides: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    write_fp8(quantized / "base")
    write_plain(quantized / "base", plain / "base")
    runs = [tiny_runs.trained(folder, ("train.steps", "4"), *overrides) for folder in (quantized, plain)]
    found, expected = map(losses, runs)
    assert len(found) == 4 and found == expected
    exports = [export.export(run, run.parent / "export", dtype="fp32") for run in runs]
    found_weights, expected_weights = (load_file(folder / "model.safetensors") for folder in exports)
    assert found_weights.keys() == expected_weights.keys() and not any("scale" in name for name in found_weights)
    assert all(torch.equal(found_weights[name], expected_weights[name]) for name in expected_weights)


def test_an_export_of_an_fp8_base_has_plain_weights_and_says_so(tmp_path: Path) -> None:
    base = write_fp8(tmp_path / "base")
    run = tiny_runs.trained(tmp_path, ("train.steps", "1"), ("model.lora", "{rank: 4}"))
    folder = export.export(run, tmp_path / "export", strength=0)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    weights = load_file(folder / "model.safetensors")
    with loading.open_base(base) as read:
        assert all(value.dtype == torch.bfloat16 and torch.equal(value, read(name, None).bfloat16()) for name, value in weights.items())
    AutoModelForCausalLM.from_pretrained(folder)


def test_an_adapter_of_a_quantized_base_says_on_which_weights_it_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fp8(tmp_path / "base")
    run = tiny_runs.trained(tmp_path, ("train.steps", "1"), ("model.lora", "{rank: 4}"))
    export.export(run, tmp_path / "adapter", adapter_only=True)
    assert "the adapter was trained on its dequantized weights" in capsys.readouterr().err


def test_generation_dequantizes_as_training_does(tmp_path: Path) -> None:
    base = write_fp8(tmp_path / "base")
    plain = write_plain(base, tmp_path / "plain")
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        found, expected = (load_for_generation(folder)[0](ids).logits for folder in (base, plain))
    # generation holds the weights in the type that config.json names, bf16
    assert torch.allclose(found, expected, atol=0.05) and found.std() > 0.1


def test_the_plan_and_the_start_name_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write_fp8(tmp_path / "base")
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in tiny_runs.rows()))
    given = ["--model.source", str(base), "--data.train", str(data), "--run.dir", str(tmp_path / "run"), "--train.micro_tokens", "90"]
    assert main(["plan", "--recipe", "llm_sft", *given]) == 0
    assert "base is stored in fp8 (blocks of 24 × 20): 14 of 25 tensors dequantized while loading" in capsys.readouterr().out


@pytest.mark.parametrize("declared", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "bitsandbytes", "load_in_4bit": True}])
def test_every_verb_refuses_a_base_in_another_form_by_name(
    declared: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_runs.trained(tmp_path, ("train.steps", "1"))
    base = tmp_path / "base"
    edit_config(base, quantization_config=declared)
    named = f"quantized with {declared['quant_method']}"
    given = ["--model.source", str(base), "--data.train", str(tmp_path / "chats.jsonl"), "--run.dir", str(tmp_path / "other")]
    commands = (
        ["plan", "--recipe", "llm_sft", *given],
        ["train", "--recipe", "llm_sft", *given],
        ["export", str(run), "--to", str(tmp_path / "export")],
        ["export", str(run), "--to", str(tmp_path / "export"), "--base", str(base)],
        ["generate", "--recipe", "llm_sft", "--model", str(base), "--prompt", "Good day."],
        ["chat", "--recipe", "llm_sft", "--model", str(base)],
        *([["serve", "--recipe", "llm_sft", "--model", str(base), "--port", "18977"]] if find_spec("fastapi") else []),
    )
    for command in commands:
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert named in said and said.count("error:") == 1 and "Traceback" not in said, (command, said)
    assert not [*tmp_path.glob("other/checkpoints/*")] and not (tmp_path / "export").exists()


def test_raw_values_without_a_declaration_are_refused_for_generation_too(tmp_path: Path) -> None:
    base = write_fp8(tmp_path / "base")
    edit_config(base, quantization_config=None)
    with pytest.raises(UserError, match=r"--model .* is stored as F8_E4M3"):
        load_for_generation(base)


def test_gpt_oss_in_mxfp4_is_read_into_its_fused_experts(tmp_path: Path) -> None:
    """Values, names and shapes as transformers' own class has them."""
    from transformers import GptOssConfig, GptOssForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_local_experts=3, num_experts_per_tok=2, dtype="float32",
    )  # fmt: skip
    tensors: dict[str, Tensor] = {}
    model = GptOssForCausalLM(config)
    for name, value in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inside, out = value.shape
            blocks = torch.randint(0, 256, (experts, out, inside // 32, 16), dtype=torch.uint8)
            scales = torch.randint(118, 124, (experts, out, inside // 32), dtype=torch.uint8)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            value.copy_(convert_moe_packed_tensors(blocks, scales))
        else:
            tensors[name] = value.clone()
    base = tmp_path / "base"
    base.mkdir()
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    (base / "config.json").write_text(json.dumps({**config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}))
    with torch.device("meta"):
        empty = GptOssForCausalLM(config)
    assert loading.find_misfits(empty, base) == []
    loading.materialise(empty, base, dict(model.named_buffers()), torch.device("cpu"), 0)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in empty.state_dict().items())
