"""LoRA adapters: injection into a model, initialization, merging into a weight, and peft's parameter names and config.

W' = W + s·B·A (Hu et al. 2021, arXiv:2106.09685) with s = alpha / r, or alpha / √r (rsLoRA, Kalajdzievski 2023, arXiv:2312.03732);
under DoRA (Liu et al. 2024, arXiv:2402.09353) each row of W' is then scaled to a learned length m.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import regex
import torch
from torch import Tensor, nn

from overtone.finetune.config import Lora
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import expert_adapters
from overtone.finetune.modeling.added_parameters import make_generator
from overtone.finetune.modeling.bitsandbytes_import import hide_package
from overtone.finetune.storage.strict_json import one_line

ALL_LINEAR = "all-linear"
"""Value of `model.lora.targets` for all linear layers inside and between the blocks, without the output head, and for all experts."""
MATCH_SECONDS = 5.0
"""Limit for one name; usual patterns take microseconds."""
DOWN, UP, LENGTHS = ".lora_A.default.weight", ".lora_B.default.weight", ".lora_magnitude_vector.default.weight"
"""Suffixes that peft adds to a layer's name for A [r, in], B [out, r] and m [out]."""


def inject_adapters(model: nn.Module, lora: Lora, targets: str, excluded: Collection[str] = ()) -> None:
    """Add adapters to the linear layers, and to the experts that are one parameter, whose name matches, with parameters on meta, but to
    none of the modules in `excluded`. Raises `UserError` if none matches, and for settings that experts cannot have."""
    pattern, fused = lora.targets or targets, list(expert_adapters.find_experts(model))
    chosen = [name for name, module in model.named_modules() if takes_adapter(module)]
    if pattern != ALL_LINEAR:
        chosen = match_names(pattern, [name for name, _ in model.named_modules()])
        fused = match_names(pattern, fused)
    chosen = [name for name in chosen if name not in excluded]
    fused = [name for name in fused if name.rpartition(".")[0] not in excluded]
    if not all(takes_adapter(model.get_submodule(name)) for name in chosen) or not (chosen or fused):
        raise UserError(
            f"model.lora.targets {pattern!r} must match linear layers and experts only, and at least one; check the model's module names"
        )
    expert_adapters.inject(model, lora, fused)
    if not chosen:
        return
    # Without the model's config, by which peft would rename the targets of architectures that transformers 5 has changed, and expects a
    # class of transformers: the targets here are exact names.
    config = model.__dict__.pop("config", None)
    try:
        with import_peft() as peft:
            peft.inject_adapter_in_model(peft_config(lora, chosen), model, low_cpu_mem_usage=True)
    except ValueError as error:  # such as layers of Mamba mixers, whose weights are read without calling the layer
        raise UserError(f"model.lora.targets {pattern!r}: {one_line(error)}; name other layers") from error
    finally:
        if config is not None:
            model.__dict__["config"] = config


def describe_reach(model: nn.Module) -> str | None:
    """Describe for the log which share of the weights of linear layers and experts (without the output head) has an adapter, and which have
    none; None for a model without adapters."""
    adapted = linear = 0
    experts, frozen, others = expert_adapters.find_experts(model), dict[str, int](), dict[str, int]()
    for name, module in model.named_modules():
        if hasattr(module, "base_layer"):
            adapted += module.in_features * module.out_features
        elif isinstance(module, nn.Linear) and not is_adapter(f"{name}.") and not name.endswith(".base_layer"):
            linear += module.weight.numel()
        elif not isinstance(module, expert_adapters.LAYERS) and not isinstance(module, nn.ParameterDict):
            for own, parameter in module.named_parameters(recurse=False):
                key, size = f"{name}.{own}", parameter.numel()
                if key in experts and expert_adapters.has_adapter(module, own):
                    adapted += size
                elif key in experts:
                    frozen[key] = size
                elif _is_stack(key, parameter):
                    others[key] = size
    if not adapted:
        return None
    total = adapted + linear + sum(frozen.values()) + sum(others.values())
    parts = [f"LoRA adapts layers with {adapted:,} of the {total:,} weights of linear layers ({adapted / total:.1%})"]
    if frozen:
        parts.append(
            f"{sum(frozen.values()):,} are in experts that are one parameter ({next(iter(frozen))}, …) and stay frozen: to train those, "
            f"match their names with model.lora.targets, as {ALL_LINEAR} does"
        )
    if others:
        parts.append(
            f"{sum(others.values()):,} are in parameters that no adapter reaches ({next(iter(others))}, …) and stay frozen: to train "
            "those, train all weights (without model.lora)"
        )
    return "; ".join(parts)


def _is_stack(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter stands for the weights of several linear layers: [layers, in, out], or two dimensions of them in one
    (DBRX)."""
    if name.endswith("bias") or not parameter.is_floating_point():  # packed weights of a quantized layer
        return False
    return (parameter.dim() == 3 and min(parameter.shape[1:]) > 1) or (parameter.dim() == 2 and "experts." in name)


def takes_adapter(module: nn.Module) -> bool:
    """Return whether an adapter can be added to a module: to a linear layer, but not to a class of transformers that returns something else
    than one tensor (the router of Llama 4 returns scores and logits)."""
    if not isinstance(module, nn.Linear):
        return False
    if not type(module).__module__.startswith("transformers.") or type(module).forward is nn.Linear.forward:
        return True
    states = torch.empty(1, module.in_features, dtype=module.weight.dtype, device=module.weight.device)
    with torch.no_grad():
        return isinstance(module(states), Tensor)


def is_targeted(lora: Lora | None, name: str) -> bool:
    """Return whether `model.lora.targets` names the layer. False without adapters, and for those of the recipe's own choice."""
    return lora is not None and lora.targets is not None and bool(match_names(lora.targets, [name]))


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that the regular expression `model.lora.targets` matches as a whole. Raises `UserError` for an invalid expression, and for
    one that takes seconds: some, as `(a|a)+b`, try more ways to match than a computer can."""
    try:
        compiled = regex.compile(pattern)
        return [name for name in names if compiled.fullmatch(name, timeout=MATCH_SECONDS)]
    except regex.error as error:
        raise UserError(f"model.lora.targets {pattern!r} is not a regular expression ({error}); correct it") from None
    except TimeoutError:
        raise UserError(
            f"model.lora.targets {pattern!r} had not matched a name after {MATCH_SECONDS:g} s; write it without repetitions inside of "
            "repetitions"
        ) from None


def peft_config(lora: Lora, modules: Collection[str], parameters: Collection[str] = ()) -> Any:
    """peft's own config for adapters of exactly these modules and parameters."""
    with import_peft() as peft:
        config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, use_dora=lora.dora, use_rslora=lora.rslora)
    if parameters:  # as a pattern, peft would replace the names by their last parts for models whose experts are one parameter
        config.target_modules, config.target_parameters = set(modules), sorted(parameters)
        config.lora_dropout = 0.0  # which peft refuses beside parameters; it only matters for training
    else:  # as a list, a short name would also fit the end of a longer one
        config.target_modules = "|".join(map(re.escape, sorted(modules)))
    return config


def split_targets(modules: Collection[str], fused: bool) -> tuple[list[str], list[str]]:
    """Return the names of linear layers as `target_modules` and as `target_parameters`, with which peft adds the same adapters.

    `fused`: whether the model has experts that transformers 5 makes one parameter. There, peft takes each layer with a name of
    `EXPERT_LAYERS` for these experts, also another one, such as the shared experts of DeepSeek-V3.
    """
    renamed = [name for name in modules if fused and name.rpartition(".")[2] in EXPERT_LAYERS]
    return [name for name in modules if name not in renamed], [f"{name}.weight" for name in renamed]


EXPERT_LAYERS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names of an expert's layers, and of the router, in models of transformers 4."""


@contextmanager
def import_peft() -> Iterator[ModuleType]:
    """peft, which does not find bitsandbytes while this is open: it would import that, for seconds, and look for quantized layers of its
    own kind. Ours are others."""
    with hide_package("bitsandbytes"):
        import peft
        from peft.import_utils import is_bnb_available

        try:
            yield peft
        finally:
            is_bnb_available.cache_clear()  # other code of this process may use peft with bitsandbytes


@contextmanager
def switch_off_adapters(model: nn.Module) -> Iterator[None]:
    """While open, the model computes as its base does. Only peft's flag is changed: its own switch also freezes the adapters, and then
    trains all of them."""
    adapted: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    for layer in adapted:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in adapted:
            layer._disable_adapters = False


def is_adapter(name: str) -> bool:
    return any(part in name for part in (".lora_A.", ".lora_B.", ".lora_magnitude_vector."))


def layer_of(name: str) -> str:
    """Return the adapted layer's name, from the name of an adapter's parameter."""
    return name.partition(".lora_")[0]


def is_of_layer(name: str) -> bool:
    """Return whether an adapter's parameter belongs to a linear layer, as opposed to experts that are one parameter."""
    return name.endswith((DOWN, UP, LENGTHS))


def peft_name(name: str) -> str:
    """Return a parameter's name in the files that peft writes and reads."""
    return f"base_model.model.{name.replace('.default.', '.')}".replace(".lora_magnitude_vector.weight", ".lora_magnitude_vector")


def is_magnitude(name: str) -> bool:
    """Return whether a parameter is DoRA's magnitude vector m, which is initialized from the base's weight, unlike A and B."""
    return name.endswith(LENGTHS)


def init_adapter(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Initial value: B is zero, A [*, r, in] uniform in ±1/√in (peft's Kaiming initialization), seeded by name, so it is the same on any
    number of ranks."""
    if ".lora_B." in name:
        return torch.zeros(shape)
    return (torch.rand(shape, generator=make_generator(seed, name)) * 2 - 1) / math.sqrt(shape[-1])


def init_magnitudes(rows: Tensor) -> Tensor:
    """Initial m [n] for rows [n, in] of a base's weight: their L2 norms, so that DoRA starts from the base's weight."""
    return torch.linalg.vector_norm(rows.float(), dim=1)


def merge_update(rows: Tensor, a: Tensor, b: Tensor, lengths: Tensor | None, lora: Lora) -> Tensor:
    """fp32 rows [*, n, in] of W', from those of W, A [*, r, in], the same rows of B [*, n, r], and under DoRA of m [n]."""
    update = rows.float() + lora.scale * (b.float() @ a.float())
    return update if lengths is None else update * (lengths.float() / init_magnitudes(update)).unsqueeze(1)
