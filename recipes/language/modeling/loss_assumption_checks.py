"""Checks what the loss assumes on the actual model: with its real weights, sizes, kernels and type of numbers.

What it assumes about the architecture was decided before, in fp64 and with longer samples (`architecture_problems`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from overtone.finetune.distributed import sharding
from overtone.finetune.errors import UserError
from overtone.recipes.language import collation
from overtone.recipes.language.modeling import varlen_attention

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from overtone.finetune.config import Config, Train
    from overtone.finetune.recipe import Batch, Loaded, Sample
    from overtone.recipes.language.options import LanguageOptionsT

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
"""Relative difference of summed negative log-likelihoods that kernels for other shapes may cause."""
ROUNDING = {"fp32": 1e-5, "bf16": 3e-2}
"""The same between rows of one shape, in which nothing but the number of positions of each expert may differ: about 84 roundings of fp32
(2⁻²³ each) and 4 of bf16 (2⁻⁷), of which each layer adds a few to the states."""


def check_batching(model: nn.Module, loaded: Loaded, config: Config[LanguageOptionsT]) -> None:
    """Check with the real weights and the chosen attention that padding and packing do not change the loss of a sample.

    Raises `UserError`. Collective: call on every rank.
    """
    _check_experts(loaded.model)
    vocabulary = int(loaded.model.vocabulary)  # type: ignore[arg-type]
    attention, precision = config.options.attention, config.train.precision
    _check_attention(model, _make_sample(16, 13, vocabulary), loaded.model.config, attention, config.train)
    first, second = _make_sample(7, 3, vocabulary), _make_sample(9, 5, vocabulary)
    alone = _summed_nll(model, collation.collate([first])) + _summed_nll(model, collation.collate([second]))
    _check_equal("padded", alone, _summed_nll(model, collation.collate([first, second])), attention, precision)
    if config.data.packing:
        _check_equal("packed", alone, _summed_nll(model, collation.pack([first, second])), attention, precision)
        _check_isolation(model, second, vocabulary, attention, precision)


def _check_experts(model: nn.Module) -> None:
    """Raises `UserError` if ranks can reach different experts, and this torch would add the gradients of these to each other."""
    experts = [module.experts for module in model.modules() if isinstance(getattr(module, "experts", None), nn.ModuleList)]
    if experts and isinstance(model, FSDPModule) and not sharding.FILLS_UNUSED and dist.get_world_size() > 1:
        raise UserError(
            "this model computes its experts in a loop, so ranks reach different ones, and torch before 2.13 then adds their gradients to "
            "each other: train it with transformers 5, torch 2.13 or --parallel.strategy ddp"
        )


def _check_attention(model: nn.Module, sample: Sample, model_config: PretrainedConfig, attention: str, train: Train) -> None:
    """Raises `UserError` unless varlen attention computes the same as the model's own with a mask. The mask's rule is also compared for
    rows of `train.micro_tokens` positions, which are too long for a trial."""
    if model_config._attn_implementation not in (varlen_attention.LOOP, varlen_attention.KERNEL):
        return
    with varlen_attention.masked_sdpa(model_config):
        expected = _summed_nll(model, collation.collate([sample]))
    with varlen_attention.compare_rule(train.micro_tokens):
        found = _summed_nll(model, collation.collate([sample]))
    if _differ(expected, found, train.precision):
        raise UserError(
            f"this model's loss of one sample is {expected:.6g} nats by sdpa with a mask and {found:.6g} by varlen, so it would be trained "
            f"with another attention than its own, with options.attention: {attention}; use sdpa or eager"
        )


def _check_isolation(model: nn.Module, sample: Sample, vocabulary: int, attention: str, precision: str) -> None:
    """Raises `UserError` if a sample's loss depends on which sample of the same length is packed before it, by more than rounding."""
    others = (_make_sample(7, start, vocabulary, learned=False) for start in (3, 11, 19))
    found = sorted(_summed_nll(model, collation.pack([other, sample])) for other in others)
    if not found[-1] - found[0] <= ROUNDING[precision] * abs(found[0]):
        raise UserError(
            f"packed samples attend to each other in this model ({' and '.join(f'{each:.9g}' for each in found)} nats for the same "
            f"sample after different others), with options.attention: {attention}; train with data.packing: false"
        )


def _make_sample(size: int, start: int, vocabulary: int, learned: bool = True) -> Sample:
    return {"ids": (torch.arange(size) * 7 + start) % vocabulary, "supervised": torch.full((size,), learned)}


@torch.no_grad()
def _summed_nll(model: nn.Module, batch: Batch) -> float:
    """Negative log-likelihood of a batch in nats, summed over its targets."""
    device = next(model.parameters()).device
    nll, *_ = model({name: tensor.to(device) for name, tensor in batch.tensors.items()}, batch.lengths)
    return float(nll)


def _check_equal(how: str, alone: float, together: float, attention: str, precision: str) -> None:
    if _differ(alone, together, precision):
        raise UserError(
            f"this model's loss of two samples is {alone:.6g} nats if each is alone and {together:.6g} if they are {how}, so positions "
            f"would be wrong or samples would attend to each other, with options.attention: {attention}; "
            "try options.attention: sdpa or eager, or data.packing: false"
        )


def _differ(expected: float, found: float, precision: str) -> bool:
    return abs(found - expected) > TOLERANCE[precision] * abs(expected)
