"""LoRA adapters of experts that are one parameter: grouped experts of transformers 5, gpt-oss, Llama 4, Granite and JetMoE.

W'_e = W_e + s·B_e·A_e for each expert e, the update of peft's `target_parameters`. peft computes the sum for all experts in each forward,
and keeps it and its gradient for the backward pass. Here the experts compute with a `LowRankWeight` instead, and the adapters are
parameters of the experts' module that are sharded by experts, as the weights are: `lora_A.NAME` [E, r, in] and `lora_B.NAME` [E, out, r].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from overtone.finetune.config import Lora
from overtone.finetune.distributed.sharding import plain_name
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.low_rank_weight import LowRankWeight
from overtone.finetune.storage.tensor_layouts import Reader, find_bounds

SCALE = "expert_adapter_scale"
"""Attribute of an adapted module: s."""
LAYERS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules whose weights never belong to several layers, regardless of their shape."""


class AdaptedExperts(NamedTuple):
    """A parameter that stands for the weights of all experts, and has an adapter."""

    name: str
    transposed: bool
    """True if its axes are [E, in, out]; otherwise [E, out, in]. It is what peft assumes: for a class that does not declare its layout, A
    may belong to the outputs and B to the inputs, which is as good an update."""

    @property
    def down(self) -> str:
        """Name of A [E, r, in]."""
        module, _, own = self.name.rpartition(".")
        return f"{module}.lora_A.{own}"

    @property
    def up(self) -> str:
        """Name of B [E, out, r]."""
        module, _, own = self.name.rpartition(".")
        return f"{module}.lora_B.{own}"

    def shape(self, down: Sequence[int], up: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the parameter, from those of A and B."""
        return (down[0], down[2], up[1]) if self.transposed else (down[0], up[1], down[2])

    def factors(self, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """L and R, whose product has the axes of the parameter, from A and B."""
        return (down.transpose(-2, -1), up.transpose(-2, -1)) if self.transposed else (up, down)

    def read_factors(self, read: Reader, rank: int, slices: tuple[slice, ...]) -> tuple[Tensor, Tensor]:
        """L and R for these slices of the parameter; `read` reads A and B."""
        experts, rows, columns = slices
        whole = slice(0, rank)
        into, out = (rows, columns) if self.transposed else (columns, rows)
        return self.factors(read(self.down, (experts, whole, into)), read(self.up, (experts, out, whole)))


def find_experts(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters [E, …, …] that stand for the weights of all experts of a layer, by name. Other parameters of three axes, such
    as those of Mamba heads, belong to a module without a number of experts."""
    return {
        f"{name}.{own}": parameter
        for name, module in model.named_modules()
        if not isinstance(module, LAYERS)
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and not own.endswith("bias")
        if "experts" in name.split(".") or getattr(module, "num_experts", None) == len(parameter)
    }


def check(lora: Lora, names: Sequence[str]) -> None:
    """Raises `UserError` for settings that adapters of these parameters cannot have, in peft either."""
    for key, value in (("dropout", lora.dropout), ("dora", lora.dora)):
        if value:
            off = "set it to 0" if key == "dropout" else "remove it"
            raise UserError(
                f"model.lora.{key}: {str(value).lower()} does not work for experts that are one parameter ({names[0]}, …); {off}, or set "
                "model.lora.targets to a pattern that leaves them out"
            )


def inject(model: nn.Module, lora: Lora, names: Sequence[str]) -> None:
    """Add adapters to these parameters of `find_experts`, on their device. Raises `UserError` as `check`."""
    if names:
        check(lora, names)
    for name in names:
        path, _, own = name.rpartition(".")
        module: Any = model.get_submodule(path)
        if not hasattr(module, "lora_A"):
            module.lora_A, module.lora_B, module._disable_adapters = nn.ParameterDict(), nn.ParameterDict(), False
            setattr(module, SCALE, lora.scale)
            module.register_forward_pre_hook(_put_weights)
            module.register_forward_hook(_take_weights, always_call=True)
        weight = module.get_parameter(own)
        experts, out, into = weight.shape
        if is_transposed(module):
            into, out = out, into
        module.lora_A[own] = nn.Parameter(weight.new_empty(experts, lora.rank, into))
        module.lora_B[own] = nn.Parameter(weight.new_empty(experts, out, lora.rank))


def is_transposed(module: nn.Module) -> bool:
    """Return whether peft takes the axes of a module's weights for [E, in, out]."""
    return bool(getattr(module, "is_transposed", False))


def _put_weights(module: nn.Module, _: object) -> None:
    """Hook before the forward of adapted experts: they find their weights with the update. An entry of `__dict__` goes before a parameter,
    which stays where sharding expects it."""
    experts: Any = module
    if experts._disable_adapters:
        return
    for own in experts.lora_A:
        up = experts.lora_B[own] * getattr(experts, SCALE)
        factors = AdaptedExperts(own, is_transposed(module)).factors(experts.lora_A[own], up)
        module.__dict__[own] = LowRankWeight(experts._parameters[own], *factors)


def _take_weights(module: nn.Module, _: object, __: object) -> None:
    experts: Any = module
    for own in experts.lora_A:
        module.__dict__.pop(own, None)


def has_adapter(module: nn.Module, own: str) -> bool:
    """Return whether a parameter of a module of `find_experts` has an adapter."""
    return hasattr(module, SCALE) and own in module.lora_A  # type: ignore[operator]


def list_adapted(model: nn.Module) -> list[AdaptedExperts]:
    """Return the adapted parameters of a model, in the order of their definition."""
    return [
        AdaptedExperts(f"{plain_name(name)}.{own}", is_transposed(module))
        for name, module in model.named_modules()
        for own, _ in module.named_parameters(recurse=False)
        if has_adapter(module, own)
    ]


def name_in_peft(adapted: Iterable[AdaptedExperts]) -> dict[str, tuple[str, AdaptedExperts]]:
    """Return the name of a tensor in the files of peft → name of A or B, and its parameter. peft wraps a module once for each of its
    parameters, the first one innermost; the place in this nest says which parameter a tensor belongs to."""
    wrapped, found = dict[str, list[AdaptedExperts]](), dict[str, tuple[str, AdaptedExperts]]()
    for each in adapted:
        wrapped.setdefault(each.name.rpartition(".")[0], []).append(each)
    for module, inside in wrapped.items():
        for depth, each in enumerate(reversed(inside)):
            place = f"base_model.model.{module}{'.base_layer' * depth}"
            found |= {f"{place}.lora_A.weight": (each.down, each), f"{place}.lora_B.weight": (each.up, each)}
    return found


def peft_shape(name: str, each: AdaptedExperts, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of A or B in the files of peft: A [E·r, in], B [out, r·E]."""
    return (shape[0] * shape[1], shape[2]) if name == each.down else (shape[1], shape[2] * shape[0])


def read_for_peft(read: Reader, name: str, each: AdaptedExperts, shape: Sequence[int], slices: tuple[slice, ...] | None) -> Tensor:
    """Slices of A or B as they are in the files of peft. `shape`: of the tensor that `read` reads."""
    (start, column), (stop, last) = find_bounds(peft_shape(name, each, shape), slices)
    if name == each.down:  # rows are (expert, rank)
        rank = shape[1]
        first, end = start // rank, -(-stop // rank)
        rows = read(name, (slice(first, end), slice(0, rank), slice(column, last))).reshape(-1, last - column)
        return rows[start - first * rank : stop - first * rank]
    values = read(name, (slice(0, shape[0]), slice(start, stop), slice(0, shape[2])))
    return values.permute(1, 2, 0).reshape(stop - start, -1)[:, column:last]  # columns are (rank, expert)
