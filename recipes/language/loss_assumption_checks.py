"""Checks what the loss assumes on the actual model, because there are hundreds of architectures and new ones every week."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from finetune.errors import UserError
from recipes.language import collation, varlen_attention

if TYPE_CHECKING:
    from finetune.config import Config
    from finetune.modeling.loss_head import Shaping
    from finetune.recipe import Batch, Loaded, Sample
    from recipes.language.options import LanguageOptions

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
"""Relative difference of summed negative log-likelihoods that kernels for other shapes may cause."""


class _StandIn(nn.Module):
    """Replaces a part of a model: records its input and returns a given output."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
        self.input: Any = None

    def forward(self, *given: Any, **_: Any) -> Any:
        self.input = given[0] if given else None
        return self.output


class _DecoderOutput(tuple[Tensor]):
    """A decoder's output with `last_hidden_state`; any other attribute is None."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def check_own_forward(whole: Any, decoder_path: str, head_path: str, shaping: Shaping) -> None:
    """Raises `UserError` unless the model's own forward passes the decoder's states to the head unchanged, and changes the logits only as
    `shaping` says.

    For one call, the decoder and the head are replaced by stand-ins, so no weights are needed.
    """
    head = whole.get_submodule(head_path)
    states = torch.linspace(-3, 3, 2 * head.in_features).view(1, 2, -1)
    logits = torch.linspace(-60, 60, 2 * head.out_features).view(1, 2, -1)
    decoder, output_head = _StandIn(_DecoderOutput((states,))), _StandIn(logits.clone())
    with _replace_modules(whole, {decoder_path: decoder, head_path: output_head}), torch.no_grad():
        found = whole(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False).logits
    expected = logits * shaping.scale
    if shaping.cap is not None:
        expected = shaping.cap * torch.tanh(expected / shaping.cap)
    received = output_head.input
    if not isinstance(received, Tensor) or not torch.equal(received, states) or not torch.allclose(found, expected, rtol=1e-5):
        raise UserError(
            f"{type(whole).__name__} changes its states or logits in a way that this recipe's loss does not support, so the loss would not "
            "be the model's own; llm_sft cannot train it"
        )


@contextmanager
def _replace_modules(whole: nn.Module, others: dict[str, nn.Module]) -> Iterator[None]:
    """While open, `others` are in the place of the modules at these paths."""
    before = {path: whole.get_submodule(path) for path in others}
    for path, other in others.items():
        whole.set_submodule(path, other)
    try:
        yield
    finally:
        for path, module in before.items():
            whole.set_submodule(path, module)


def check_batching(model: nn.Module, loaded: Loaded, config: Config[LanguageOptions]) -> None:
    """Check with the real weights and the chosen attention that padding and packing do not change the loss of a sample.

    Raises `UserError`. Collective: call on every rank.
    """
    vocabulary = int(loaded.model.vocabulary)  # type: ignore[arg-type]
    _check_attention(model, _make_sample(16, 13, vocabulary), loaded, config)
    first, second = _make_sample(7, 3, vocabulary), _make_sample(9, 5, vocabulary)
    alone = _summed_nll(model, collation.collate([first])) + _summed_nll(model, collation.collate([second]))
    _check_equal("padded", alone, _summed_nll(model, collation.collate([first, second])), config)
    if config.data.packing:
        _check_equal("packed", alone, _summed_nll(model, collation.pack([first, second])), config)
        _check_isolation(model, second, vocabulary, config)


def _check_attention(model: nn.Module, sample: Sample, loaded: Loaded, config: Config[LanguageOptions]) -> None:
    """Raises `UserError` unless varlen attention computes the same as the model's own with a mask. The mask's rule is also compared for
    rows of `micro_tokens` positions, which are too long for a trial."""
    model_config: Any = loaded.model.config
    if model_config._attn_implementation not in (varlen_attention.LOOP, varlen_attention.KERNEL):
        return
    with varlen_attention.masked_sdpa(model_config):
        expected = _summed_nll(model, collation.collate([sample]))
    with varlen_attention.compare_rule(config.train.micro_tokens):
        found = _summed_nll(model, collation.collate([sample]))
    if _differ(expected, found, config):
        raise UserError(
            f"this model's loss of one sample is {expected:.6g} nats by sdpa with a mask and {found:.6g} by varlen, so it would be trained "
            f"with another attention than its own, with options.attention: {config.options.attention}; use sdpa or eager"
        )


def _check_isolation(model: nn.Module, sample: Sample, vocabulary: int, config: Config[LanguageOptions]) -> None:
    """Raises `UserError` if a sample's loss depends on which sample of the same length is packed before it.

    The losses must be equal to the last bit: the shapes are the same, so the rounding is too.
    """
    others = (_make_sample(7, start, vocabulary, learned=False) for start in (3, 11, 19))
    found = {_summed_nll(model, collation.pack([other, sample])) for other in others}
    if len(found) > 1:
        raise UserError(
            f"packed samples attend to each other in this model ({' and '.join(f'{each:.9g}' for each in sorted(found))} nats for the same "
            f"sample after different others), with options.attention: {config.options.attention}; train with data.packing: false"
        )


def _make_sample(size: int, start: int, vocabulary: int, learned: bool = True) -> Sample:
    return {"ids": (torch.arange(size) * 7 + start) % vocabulary, "supervised": torch.full((size,), learned)}


@torch.no_grad()
def _summed_nll(model: nn.Module, batch: Batch) -> float:
    """Negative log-likelihood of a batch in nats, summed over its targets."""
    device = next(model.parameters()).device
    nll, _ = model({name: tensor.to(device) for name, tensor in batch.tensors.items()}, batch.lengths)
    return float(nll)


def _check_equal(how: str, alone: float, together: float, config: Config[LanguageOptions]) -> None:
    if _differ(alone, together, config):
        raise UserError(
            f"this model's loss of two samples is {alone:.6g} nats if each is alone and {together:.6g} if they are {how}, so positions "
            f"would be wrong or samples would attend to each other, with options.attention: {config.options.attention}; "
            "try options.attention: sdpa or eager, or data.packing: false"
        )


def _differ(expected: float, found: float, config: Config[LanguageOptions]) -> bool:
    return abs(found - expected) > TOLERANCE[config.train.precision] * abs(expected)
