"""Four-bit weights: bitsandbytes' own numbers, row by row, sharded by rows, and an export that is the model that was trained."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.torch_version import TorchVersion

from overtone.finetune import config, recipe
from overtone.finetune.config import Config, Lora
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.modeling import lora_adapters, quantization
from overtone.finetune.training import run
from tests.causal_lm import recipe as causal_lm
from tests.finetune import tiny

HERE = Path(causal_lm.__file__).parent


def layer(rows: int = 12, columns: int = 128, bias: bool = True) -> tuple[nn.Linear, quantization.QuantizedLinear]:
    torch.manual_seed(2)
    linear = nn.Linear(columns, rows, bias=bias)
    found = quantization.QuantizedLinear(linear)
    found.packed.data = quantization.bytes_of(".packed", linear.weight.detach())
    found.scales.data = quantization.bytes_of(".scales", linear.weight.detach())
    return linear, found


def test_a_quantized_layer_computes_with_the_rounded_weight_forward_and_backward() -> None:
    linear, found = layer()
    inputs = torch.randn(5, 128, requires_grad=True)
    expected = nn.functional.linear(inputs, quantization.round_to_4_bits(linear.weight.detach()), linear.bias)
    assert torch.allclose(found(inputs), expected, atol=1e-5)
    (wanted,) = torch.autograd.grad(expected.square().sum(), inputs)
    (own,) = torch.autograd.grad(found(inputs).square().sum(), inputs)
    assert torch.allclose(own, wanted, atol=1e-4)
    assert 0.05 < (quantization.round_to_4_bits(linear.weight.detach()) - linear.weight).norm() / linear.weight.norm() < 0.12


def test_rounding_is_that_of_bitsandbytes() -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    linear, _ = layer()
    packed, state = quantize_4bit(linear.weight.detach(), blocksize=64, quant_type="nf4")
    assert torch.equal(quantization.round_to_4_bits(linear.weight.detach()), dequantize_4bit(packed, state))


def test_rows_quantize_independently_and_take_four_and_a_half_bits() -> None:
    linear, found = layer()
    for ending, whole in ((".packed", found.packed), (".scales", found.scales)):
        parts = [quantization.bytes_of(ending, linear.weight.detach()[rows]) for rows in (slice(0, 5), slice(5, 12))]
        assert torch.equal(torch.cat(parts), whole)
        assert quantization.original_shape(ending, tuple(whole.shape)) == (12, 128)
    assert (found.packed.numel() + found.scales.numel()) * 8 == 4.5 * linear.weight.numel()


def settings(folder: Path, *overrides: tuple[str, str]) -> Config:
    own = (("model.source", str(folder / "base")), ("data.train", str(folder / "train.jsonl")), ("log.trackers", "[]"))
    return config.resolve(str(HERE), causal_lm.RECIPE.Options, [HERE / "config.yaml"], [*own, *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "so adapters are needed"),
        ((("model.lora", "{rank: 2, dora: true}"),), "DoRA needs the unquantized weights"),
    ],
)
def test_incompatible_settings_are_refused_with_the_reason(tmp_path: Path, overrides: tuple[tuple[str, str], ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        quantization.check(settings(tmp_path, ("model.quantization", "nf4"), *overrides).model)
    quantization.check(settings(tmp_path).model)


@pytest.mark.parametrize(("version", "works"), [("2.9.1", False), ("2.11.0+cu130", False), ("2.12.0+cu130", True), ("3.0.0", True)])
def test_a_torch_that_cannot_shard_bytes_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, works: bool
) -> None:
    """`fully_shard` before torch 2.12 makes each shard a parameter that wants gradients, which bytes cannot have."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    qlora = settings(tmp_path, ("model.quantization", "nf4"), ("model.lora", "{rank: 2}"))
    with contextlib.nullcontext() if works else pytest.raises(UserError, match=re.escape(f"fully_shard of torch {version} cannot shard")):
        quantization.check(qlora.model)
    quantization.check(settings(tmp_path, ("model.lora", "{rank: 2}")).model)


def test_a_layer_whose_rows_blocks_do_not_divide_is_named() -> None:
    model = nn.Sequential(nn.Linear(96, 8))
    lora_adapters.inject_adapters(model, Lora(rank=2, targets="0"), "")
    with pytest.raises(UserError, match="0 has 96 inputs, which blocks of 64 do not divide"):
        quantization.quantize_base(model)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A QLoRA run of a Qwen3 whose matrices blocks of 64 divide, on one process."""
    if TorchVersion(torch.__version__) < "2.12":
        pytest.skip("torch 2.11 is refused, see test_a_torch_that_cannot_shard_bytes_is_refused_by_its_version")
    folder = tmp_path_factory.mktemp("qlora")
    causal_lm.write_base(folder / "base", "wide")
    tiny.write_rows(folder / "train.jsonl", tiny.texts(12, shortest=8))
    short = (
        ("train.steps", "3"),
        ("train.lr", "0.05"),
        ("train.warmup", "0"),
        ("train.precision", "fp32"),
        ("run.dir", str(folder / "run")),
    )
    lora = (("model.lora", "{rank: 3, alpha: 6}"), ("model.quantization", "nf4"))
    run.train(join((), folder), settings(folder, *short, *lora), recipe.load_recipe(HERE))
    leave()
    return folder


def test_the_export_is_the_model_that_was_trained(trained: Path, tmp_path: Path) -> None:
    out = export.export(trained / "run", tmp_path / "out")
    exported, base = load_file(out / "model.safetensors"), load_file(trained / "base" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    update = exported[name] - quantization.round_to_4_bits(base[name])
    assert torch.linalg.matrix_rank(update, atol=1e-5) <= 3 and update.abs().max() > 1e-3
    assert torch.equal(exported["model.embed_tokens.weight"], base["model.embed_tokens.weight"])


def test_a_run_records_its_quantization_and_resumes_only_with_the_same(trained: Path) -> None:
    state = json.loads((trained / "run" / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert state["quantization"] == "nf4"
    plain = settings(trained, ("model.lora", "{rank: 3, alpha: 6}"), ("run.dir", str(trained / "run")), ("train.steps", "4"))
    tiny.let_go(plain.run.dir)
    with pytest.raises(UserError, match="quantization was nf4, now None"):
        run.train(join((), trained), plain, recipe.load_recipe(HERE))
    leave()
