"""Adapters are added to the configured layers, start at zero, and merge as peft computes."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overtone.finetune.config import Lora
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import lora_adapters
from tests.finetune import tiny

KINDS = [Lora(rank=3, alpha=5, rslora=rslora, dora=dora) for rslora, dora in product((False, True), repeat=2)]


def adapted_names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if lora_adapters.is_adapter(name)]


def test_adapters_do_not_import_bitsandbytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes seconds, and prints advice that has nothing to do with the run."""
    from peft.import_utils import is_bnb_available

    (tmp_path / "bitsandbytes.py").write_text("raise AssertionError('imported for nothing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    is_bnb_available.cache_clear()
    lora_adapters.inject_adapters(nn.Sequential(nn.Linear(4, 4)), Lora(rank=2, dora=True), "all-linear")
    assert is_bnb_available(), "other code of this process may use peft with bitsandbytes"
    is_bnb_available.cache_clear()


def test_targets_of_the_config_override_the_recipes(tmp_path: Path) -> None:
    model = tiny.RECIPE.load(tiny.config_in(tmp_path)).model
    lora_adapters.inject_adapters(model, Lora(rank=2, targets="head"), tiny.RECIPE.lora_targets)
    assert adapted_names(model) == ["head.lora_A.default.weight", "head.lora_B.default.weight"]


def test_a_layer_is_targeted_by_the_config_alone() -> None:
    assert lora_adapters.is_targeted(Lora(targets="(lm_)?head"), "head")
    assert not lora_adapters.is_targeted(Lora(targets="he"), "head")
    assert not lora_adapters.is_targeted(Lora(), "head") and not lora_adapters.is_targeted(None, "head")


def test_all_linear_layers_are_adapted_on_request(tmp_path: Path) -> None:
    model = tiny.RECIPE.load(tiny.config_in(tmp_path)).model
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    lora_adapters.inject_adapters(model, Lora(rank=2, targets="all-linear"), "head")
    assert {lora_adapters.layer_of(name) for name in adapted_names(model)} == linear and len(linear) >= 4


@pytest.mark.parametrize("targets", ["haed", "blocks"])
def test_targets_that_match_nothing_are_named(tmp_path: Path, targets: str) -> None:
    model = tiny.RECIPE.load(tiny.config_in(tmp_path)).model
    with pytest.raises(UserError, match=rf"model\.lora\.targets '{targets}' must match linear layers and experts only"):
        lora_adapters.inject_adapters(model, Lora(targets=targets), tiny.RECIPE.lora_targets)


def test_a_start_is_keyed_by_name_and_seed_and_by_nothing_else() -> None:
    name, shape = "x.lora_A.default.weight", torch.Size((6, 5))
    first = lora_adapters.init_adapter(name, shape, 3)
    assert torch.equal(first, lora_adapters.init_adapter(name, shape, 3))
    assert not torch.equal(first, lora_adapters.init_adapter(name, shape, 4)) and not torch.equal(
        first, lora_adapters.init_adapter("y" + name, shape, 3)
    )
    assert not lora_adapters.init_adapter("x.lora_B.default.weight", torch.Size((5, 6)), 3).any()


def test_the_start_of_experts_is_that_of_as_many_layers() -> None:
    found = lora_adapters.init_adapter("x.experts.lora_A.up_proj", torch.Size((3, 4, 100)), 3)
    assert float(found.abs().max()) <= 0.1 < float(found.abs().max()) * 1.1 and not torch.equal(found[0], found[1])
    assert not lora_adapters.init_adapter("x.experts.lora_B.up_proj", torch.Size((3, 100, 4)), 3).any()


def test_adapter_names_are_recognized() -> None:
    names = ["a.b.lora_A.default.weight", "a.b.lora_B.default.weight", "a.b.lora_magnitude_vector.default.weight"]
    assert all(lora_adapters.is_adapter(name) and lora_adapters.layer_of(name) == "a.b" for name in names)
    assert [lora_adapters.is_magnitude(name) for name in names] == [False, False, True]
    assert lora_adapters.is_adapter("a.experts.lora_A.up_proj") and not lora_adapters.is_of_layer("a.experts.lora_A.up_proj")
    assert all(lora_adapters.is_of_layer(name) for name in names)
    assert not lora_adapters.is_adapter("lora_A.weight") and not lora_adapters.is_adapter("a.base_layer.weight")


def stock_layer(lora: Lora) -> tuple[nn.Module, Tensor]:
    """A layer that peft has adapted, with values as after some training, and its base weight [7, 4]."""
    from peft import inject_adapter_in_model

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 7, bias=False))
    base = model[0].weight.detach().clone()
    inject_adapter_in_model(lora_adapters.peft_config(lora, ["0"]), model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if lora_adapters.is_adapter(name):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model, base


@pytest.mark.parametrize("lora", KINDS, ids=str)
def test_a_merged_weight_is_what_peft_computes(lora: Lora) -> None:
    model, base = stock_layer(lora)
    values = {name.removeprefix("0"): parameter.detach() for name, parameter in model.named_parameters()}
    own = lora_adapters.merge_update(base, values[lora_adapters.DOWN], values[lora_adapters.UP], values.get(lora_adapters.LENGTHS), lora)
    stock = model(torch.eye(4)).detach().T
    assert torch.allclose(own, stock, atol=1e-6) and not torch.allclose(own, base, atol=1e-2)


def test_rows_merge_independently() -> None:
    """Export merges block by block, so no row may need another."""
    lora = KINDS[-1]
    model, base = stock_layer(lora)
    values = {name.removeprefix("0"): parameter.detach() for name, parameter in model.named_parameters()}
    a, b, lengths = values[lora_adapters.DOWN], values[lora_adapters.UP], values[lora_adapters.LENGTHS]
    parts = [lora_adapters.merge_update(base[rows], a, b[rows], lengths[rows], lora) for rows in (slice(0, 3), slice(3, 7))]
    assert torch.equal(torch.cat(parts), lora_adapters.merge_update(base, a, b, lengths, lora))


def test_dora_starts_at_the_lengths_of_the_base() -> None:
    from peft import inject_adapter_in_model

    model = nn.Sequential(nn.Linear(4, 7, bias=False))
    base = model[0].weight.detach().clone()
    inject_adapter_in_model(lora_adapters.peft_config(KINDS[-1], ["0"]), model)
    stock = dict(model.named_parameters())["0" + lora_adapters.LENGTHS]
    assert torch.allclose(lora_adapters.init_magnitudes(base), stock)


@pytest.mark.parametrize(
    ("targets", "message"),
    [(r"(a|a)+c", r"had not matched a name after 0\.1 s; write it without repetitions inside"), ("(a", "is not a regular expression")],
)
def test_a_pattern_that_cannot_be_matched_is_an_error(targets: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one tries about 2^40 ways to match the name."""
    monkeypatch.setattr(lora_adapters, "MATCH_SECONDS", 0.1)
    model = nn.ModuleDict({"a" * 40 + "cb": nn.Linear(4, 4)})
    with pytest.raises(UserError, match=rf"model\.lora\.targets .*{message}"):
        lora_adapters.inject_adapters(model, Lora(rank=2, targets=targets), "")


def test_targets_match_whole_module_names() -> None:
    model = nn.ModuleDict({"head": nn.Linear(4, 4), "overhead": nn.Linear(4, 4), "head_2": nn.Linear(4, 4)})
    lora_adapters.inject_adapters(model, Lora(rank=2, targets="head"), "")
    assert {lora_adapters.layer_of(name) for name in adapted_names(model)} == {"head"}


def test_layers_that_peft_takes_for_experts_are_exported_as_parameters() -> None:
    """Only of models with experts that transformers 5 makes one parameter; then all names are a list, which peft leaves as they are."""
    names = ["layers.0.q_proj", "layers.0.shared.gate_proj", "layers.1.w2"]
    assert lora_adapters.split_targets(names, False) == (names, [])
    modules, parameters = lora_adapters.split_targets(names, True)
    assert (modules, parameters) == (names[:1], ["layers.0.shared.gate_proj.weight", "layers.1.w2.weight"])
    config = lora_adapters.peft_config(Lora(rank=2, dropout=0.1), modules, parameters)
    assert (config.target_modules, config.target_parameters, config.lora_dropout) == ({*modules}, parameters, 0.0)
    config = lora_adapters.peft_config(Lora(rank=2, dropout=0.1), names)
    assert config.target_modules == r"layers\.0\.q_proj|layers\.0\.shared\.gate_proj|layers\.1\.w2" and config.lora_dropout == 0.1


class Experts(nn.Module):
    """Experts as one parameter, as in gpt-oss."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(4, 8, 16))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(4, 16))


def test_the_share_of_the_weights_that_adapters_reach_is_said() -> None:
    with torch.device("meta"):
        layers = {"embed": nn.Embedding(50, 8), "q_proj": nn.Linear(8, 8), "o_proj": nn.Linear(8, 24), "conv": nn.Conv1d(8, 8, 3)}
        plain, fused = nn.ModuleDict(layers), nn.ModuleDict({"q_proj": nn.Linear(8, 8), "experts": Experts()})
    assert lora_adapters.describe_reach(plain) is None
    lora_adapters.inject_adapters(plain, Lora(rank=2, targets="q_proj"), "all-linear")
    assert lora_adapters.describe_reach(plain) == "LoRA adapts layers with 64 of the 256 weights of linear layers (25.0%)"
    lora_adapters.inject_adapters(fused, Lora(rank=2, targets="q_proj"), "all-linear")
    assert lora_adapters.describe_reach(fused) == (
        "LoRA adapts layers with 64 of the 576 weights of linear layers (11.1%); 512 are in experts that are one parameter "
        "(experts.gate_up_proj, …) and stay frozen: to train those, match their names with model.lora.targets, as all-linear does"
    )


@pytest.mark.parametrize(("targets", "adapted"), [("all-linear", 576), (r".*proj", 576), (r"experts\..*_proj", 512)])
def test_experts_that_are_one_parameter_are_adapted_by_their_names(targets: str, adapted: int) -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"q_proj": nn.Linear(8, 8), "experts": Experts()})
    lora_adapters.inject_adapters(model, Lora(rank=2, targets=targets), "q_proj")
    assert lora_adapters.describe_reach(model) == (
        f"LoRA adapts layers with {adapted} of the 576 weights of linear layers ({adapted / 576:.1%})"
    )
    named = {name: [*parameter.shape] for name, parameter in model.named_parameters() if lora_adapters.is_adapter(name)}
    assert named["experts.lora_A.gate_up_proj"] == [4, 2, 16] and named["experts.lora_B.gate_up_proj"] == [4, 8, 2]
    assert all(parameter.is_meta for parameter in model.parameters())


def test_modules_that_are_left_out_keep_their_experts_as_they_are() -> None:
    model = nn.ModuleDict({"q_proj": nn.Linear(8, 8), "experts": Experts()})
    lora_adapters.inject_adapters(model, Lora(rank=2), "all-linear", excluded={"experts"})
    assert {lora_adapters.layer_of(name) for name in adapted_names(model)} == {"q_proj"}


def test_parameters_that_no_adapter_reaches_are_said_too() -> None:
    """Experts in two dimensions, as in DBRX, and layers of three that are no experts. Packed weights of a layer are neither."""
    model: Any = nn.ModuleDict({"q_proj": nn.Linear(8, 8), "experts": nn.Module(), "mamba": nn.Module()})
    model["experts"].mlp = nn.Module()
    model["experts"].mlp.w1 = nn.Parameter(torch.zeros(12, 8))
    model["experts"].mlp.packed = nn.Parameter(torch.zeros(12, 4, dtype=torch.uint8), requires_grad=False)
    model["mamba"].x_proj_weight = nn.Parameter(torch.zeros(2, 4, 4))
    model["mamba"].time_mix = nn.Parameter(torch.zeros(1, 1, 4))
    lora_adapters.inject_adapters(model, Lora(rank=2), "all-linear")
    assert lora_adapters.describe_reach(model) == (
        "LoRA adapts layers with 64 of the 192 weights of linear layers (33.3%); 128 are in parameters that no adapter reaches "
        "(experts.mlp.w1, …) and stay frozen: to train those, train all weights (without model.lora)"
    )


def test_the_model_keeps_its_config_without_which_peft_adds_the_adapters() -> None:
    """peft of transformers 5 renames targets by a config's model_type, and expects a class of transformers."""
    with torch.device("meta"):
        model = nn.ModuleDict({"q_proj": nn.Linear(8, 8)})
    model.config = type("Config", (), {"model_type": "qwen3_moe"})()
    lora_adapters.inject_adapters(model, Lora(rank=2), "all-linear")
    assert model.config.model_type == "qwen3_moe" and len(adapted_names(model)) == 2


def test_a_linear_class_of_transformers_that_returns_something_else_gets_no_adapter() -> None:
    from transformers.models.falcon.modeling_falcon import FalconLinear
    from transformers.models.llama4.modeling_llama4 import Llama4Router, Llama4TextConfig

    router = Llama4Router(Llama4TextConfig(hidden_size=8, num_local_experts=2, num_experts_per_tok=1))
    assert isinstance(router, nn.Linear) and not lora_adapters.takes_adapter(router)
    model = nn.ModuleDict({"router": router, "up": nn.Linear(8, 8), "own": FalconLinear(8, 8)})
    lora_adapters.inject_adapters(model, Lora(rank=2), "all-linear")
    assert {lora_adapters.layer_of(name) for name in adapted_names(model)} == {"up", "own"}
    with pytest.raises(UserError, match="must match linear layers and experts only"):
        lora_adapters.inject_adapters(model, Lora(rank=2, targets="router"), "all-linear")


def test_layers_that_peft_refuses_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("Module 'out_proj' is incompatible\nwith Mamba-based models")

    monkeypatch.setattr("peft.inject_adapter_in_model", refuse)
    with pytest.raises(UserError, match="model.lora.targets 'all-linear': Module 'out_proj' is incompatible with Mamba-based models"):
        lora_adapters.inject_adapters(nn.ModuleDict({"out_proj": nn.Linear(2, 2)}), Lora(rank=2), "all-linear")
