"""Adapters of experts that are one parameter compute, merge and are stored as peft's `target_parameters`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overtone.finetune.config import Lora
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import expert_adapters, lora_adapters, quantization
from overtone.finetune.modeling.expert_adapters import AdaptedExperts
from overtone.finetune.storage.tensor_layouts import Reader

COUNT, HIDDEN, INSIDE, RANK = 3, 6, 5, 2
LORA = Lora(rank=RANK, alpha=5, rslora=True)
NAMES = ["layer.experts.up_proj", "layer.experts.down_proj"]


class Experts(nn.Module):
    """All experts of all inputs, whose weights are [E, out, in], or [E, in, out] if transposed."""

    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        self.num_experts, self.is_transposed = COUNT, transposed
        shapes = [(INSIDE, HIDDEN), (HIDDEN, INSIDE)]
        up, down = (torch.randn(COUNT, *(shape[::-1] if transposed else shape)) for shape in shapes)
        self.up_proj, self.up_proj_bias, self.down_proj = nn.Parameter(up), nn.Parameter(torch.randn(COUNT, 1, INSIDE)), nn.Parameter(down)

    def forward(self, states: Tensor) -> Tensor:
        """[N, hidden] → [N, hidden]."""
        if len(states) == 0:
            raise ValueError("no states")
        total = torch.zeros_like(states)
        for number in range(COUNT):
            up, down = self.up_proj[number], self.down_proj[number]
            inside = (states @ up if self.is_transposed else functional.linear(states, up)) + self.up_proj_bias[number]
            total = total + (inside.relu() @ down if self.is_transposed else functional.linear(inside.relu(), down))
        return total


class Heads(nn.Module):
    """Three axes, but no experts, as the heads of a Mamba layer."""

    def __init__(self) -> None:
        super().__init__()
        self.x_proj_weight = nn.Parameter(torch.randn(2, 4, 4))


def make_model(transposed: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"layer": nn.ModuleDict({"experts": Experts(transposed), "heads": Heads()})})


def run(model: Any, states: Tensor) -> Tensor:
    result: Tensor = model["layer"]["experts"](states)
    return result


def make_states() -> Tensor:
    return torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(1))


def inject_trained(model: nn.Module) -> nn.Module:
    """With adapters that have values as after some training, and are all that is trained."""
    expert_adapters.inject(model, LORA, NAMES)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(lora_adapters.is_adapter(name))
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.5)
    return model


def make_stock(own: nn.Module, transposed: bool) -> nn.Module:
    """The same model with peft's adapters, which have the values of `own`."""
    from peft import inject_adapter_in_model

    model = make_model(transposed)
    inject_adapter_in_model(lora_adapters.peft_config(LORA, [], NAMES), model)
    held, values = dict(model.named_parameters()), dict(own.named_parameters())
    written = expert_adapters.name_in_peft(expert_adapters.list_adapted(own))
    assert {name for name in held if "lora_" in name} == {peft_place(name) for name in written} and len(written) == 4
    with torch.no_grad():
        for name, (inner, each) in written.items():
            held[peft_place(name)].copy_(read_whole(values, inner, each))
    return model


def peft_place(name: str) -> str:
    """Of a tensor of an adapter's file, the name of the parameter in a model."""
    return name.removeprefix("base_model.model.").replace(".weight", ".default.weight")


def reader(values: dict[str, nn.Parameter]) -> Reader:
    return lambda name, slices: values[name].detach()[slices or ...]


def read_whole(values: dict[str, nn.Parameter], name: str, each: AdaptedExperts) -> Tensor:
    return expert_adapters.read_for_peft(reader(values), name, each, values[name].shape, None)


def test_the_weights_of_experts_are_found_and_nothing_else_of_three_axes() -> None:
    assert list(expert_adapters.find_experts(make_model())) == NAMES
    lone = Experts()
    assert list(expert_adapters.find_experts(nn.ModuleDict({"mlp": lone}))) == ["mlp.up_proj", "mlp.down_proj"], "by their number"
    lone.num_experts = 7
    assert not expert_adapters.find_experts(nn.ModuleDict({"mlp": lone}))
    assert not expert_adapters.find_experts(nn.ModuleDict({"experts": nn.Conv1d(2, 3, 4)}))


@pytest.mark.parametrize("transposed", [False, True])
def test_results_and_gradients_are_those_of_peft(transposed: bool) -> None:
    model = inject_trained(make_model(transposed))
    stock = make_stock(model, transposed)
    found, expected = (run(each, make_states()) for each in (model, stock))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, run(make_model(transposed), make_states()), atol=0.1)
    for result in (found, expected):
        result.square().sum().backward()
    values, held = dict(model.named_parameters()), dict(stock.named_parameters())
    gradients = {name: nn.Parameter(value.grad) for name, value in values.items() if value.grad is not None}
    assert gradients.keys() == {name for name in values if lora_adapters.is_adapter(name)}, "only adapters are trained"
    for name, (inner, each) in expert_adapters.name_in_peft(expert_adapters.list_adapted(model)).items():
        stock_gradient = held[peft_place(name)].grad
        assert stock_gradient is not None and stock_gradient.abs().max() > 0.1
        assert torch.allclose(read_whole(gradients, inner, each), stock_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_merged_weights_are_those_of_peft_whatever_the_blocks(transposed: bool) -> None:
    model = inject_trained(make_model(transposed))
    stock: Any = make_stock(model, transposed)
    merged = stock["layer"]["experts"].unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    adapted = expert_adapters.list_adapted(model)
    assert [each.name for each in adapted] == NAMES
    values = dict(model.named_parameters())
    for each in adapted:
        base = values[each.name].detach()
        expected = merged.get_parameter(each.name.rpartition(".")[2])
        assert each.shape(values[each.down].shape, values[each.up].shape) == base.shape
        for rows in (slice(0, 2), slice(2, base.shape[1])):
            part = (slice(1, COUNT), rows, slice(1, 4))
            left, right = each.read_factors(reader(values), RANK, part)
            found = lora_adapters.merge_update(base[part], right, left, None, LORA)
            assert torch.allclose(found, expected[part], rtol=1e-6, atol=1e-6) and not torch.allclose(found, base[part], atol=0.1)


def test_slices_of_an_adapter_in_the_layout_of_peft_are_those_of_the_whole() -> None:
    model = inject_trained(make_model())
    values = dict(model.named_parameters())
    for inner, each in expert_adapters.name_in_peft(expert_adapters.list_adapted(model)).values():
        whole = read_whole(values, inner, each)
        assert whole.shape == expert_adapters.peft_shape(inner, each, values[inner].shape)
        for start in range(0, len(whole) - 1, 2):
            part = (slice(start, start + 3), slice(1, whole.shape[1]))
            found = expert_adapters.read_for_peft(reader(values), inner, each, values[inner].shape, part)
            assert torch.equal(found, whole[part])


def test_experts_compute_as_the_base_while_their_adapters_are_off() -> None:
    model, base = inject_trained(make_model()), run(make_model(), make_states())
    with lora_adapters.switch_off_adapters(model):
        assert torch.equal(run(model, make_states()), base)
    assert not torch.allclose(run(model, make_states()), base, atol=0.1)


def test_a_copy_of_a_model_computes_with_its_own_adapters() -> None:
    """The plan of a run copies its model."""
    model = inject_trained(make_model())
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if ".lora_B." in name:
                parameter.zero_()
    assert torch.equal(run(copied, make_states()), run(make_model(), make_states()))


def test_adapted_experts_are_compiled_as_a_whole() -> None:
    model = inject_trained(make_model())
    compiled = torch.compile(lambda states: run(model, states), backend="eager", fullgraph=True)
    found, expected = compiled(make_states()), run(model, make_states())
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_forward_that_fails_leaves_the_parameters_in_place() -> None:
    model: Any = inject_trained(make_model())
    with pytest.raises(ValueError, match="no states"):
        run(model, torch.zeros(0, HIDDEN))
    experts = model["layer"]["experts"]
    assert isinstance(experts.up_proj, nn.Parameter) and isinstance(experts.down_proj, nn.Parameter)


def test_some_of_the_parameters_can_be_adapted() -> None:
    model = make_model()
    expert_adapters.inject(model, LORA, NAMES[1:])
    adapted = expert_adapters.list_adapted(model)
    assert [each.name for each in adapted] == NAMES[1:]
    assert {name for name, _ in expert_adapters.name_in_peft(adapted).values()} == {adapted[0].down, adapted[0].up}
    assert sum(lora_adapters.is_adapter(name) for name, _ in model.named_parameters()) == 2


REFUSED: dict[str, Callable[[nn.Module], None]] = {
    r"dropout: 0\.1 does not work for experts .*; set it to 0, or set model\.lora\.targets to a pattern": lambda model: (
        lora_adapters.inject_adapters(model, Lora(dropout=0.1), "all-linear")
    ),
    r"dora: true does not work for experts .*; remove it, or set model\.lora\.targets to a pattern": lambda model: (
        lora_adapters.inject_adapters(model, Lora(dora=True), "all-linear")
    ),
    r"quantization: nf4 packs linear layers, not experts .*; set model\.lora\.targets to a pattern": lambda model: (
        quantization.quantize_base(inject_trained(model))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_experts_cannot_have_is_refused_with_the_way_out(message: str) -> None:
    with pytest.raises(UserError, match=rf"^model\.(lora\.)?{message}") as error:
        REFUSED[message](make_model())
    assert "experts that are one parameter (layer.experts.up_proj, …)" in str(error.value)
