"""What the loss relies on, checked on the model at hand and not believed: there are hundreds of architectures, and new ones every week."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from finetune.errors import UserError
from recipes.language import collation as batching
from recipes.language import varlen_attention

if TYPE_CHECKING:
    from finetune.config import Config
    from finetune.modeling.loss_head import Shaping
    from finetune.recipe import Batch, Loaded, Sample
    from recipes.language.options import LanguageOptions

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
"""Relative, between sums of negative log-likelihoods that kernels of other shapes computed."""


class _Known(nn.Module):
    """Stands in for a part of a model: keeps what comes in, and gives out what is known."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.seen: Any = None

    def forward(self, *given: Any, **_: Any) -> Any:
        self.seen = given[0] if given else None
        return self.answer


class _States(tuple[Tensor]):
    """A decoder's output that holds last_hidden_state, and None for whatever else a model asks for."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def check_ends(whole: Any, decoder_path: str, head_path: str, shaping: Shaping) -> None:
    """Whether the model's own forward hands the decoder's states to the head as they are, and changes logits as `shaping` says.

    Its decoder and head are replaced by stand-ins for the time of one call, so no weight is needed. Raises `UserError` if not.
    """
    head = whole.get_submodule(head_path)
    states = torch.linspace(-3, 3, 2 * head.in_features).view(1, 2, -1)
    logits = torch.linspace(-60, 60, 2 * head.out_features).view(1, 2, -1)
    decoder, asked = _Known(_States((states,))), _Known(logits.clone())
    with _replaced(whole, {decoder_path: decoder, head_path: asked}), torch.no_grad():
        found = whole(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False).logits
    expected = logits * shaping.scale
    if shaping.cap is not None:
        expected = shaping.cap * torch.tanh(expected / shaping.cap)
    if not isinstance(asked.seen, Tensor) or not torch.equal(asked.seen, states) or not torch.allclose(found, expected, rtol=1e-5):
        raise UserError(
            f"{type(whole).__name__} does something to its states or logits that this recipe's loss does not know, so it would be trained "
            "on another loss than its own; llm_sft cannot train it"
        )


@contextmanager
def _replaced(whole: nn.Module, others: dict[str, nn.Module]) -> Iterator[None]:
    """While open, the modules at these paths are others."""
    before = {path: whole.get_submodule(path) for path in others}
    for path, other in others.items():
        whole.set_submodule(path, other)
    try:
        yield
    finally:
        for path, module in before.items():
            whole.set_submodule(path, module)


def check(model: nn.Module, loaded: Loaded, config: Config[LanguageOptions]) -> None:
    """Whether padding and packing change nothing, with the real weights and the attention that will be used.

    Raises `UserError`. Collective: call on every rank.
    """
    words = int(loaded.model.words)  # type: ignore[arg-type]
    _check_attention(model, _sample(16, 13, words), loaded, config)
    first, second = _sample(7, 3, words), _sample(9, 5, words)
    alone = _likelihood(model, batching.collate([first])) + _likelihood(model, batching.collate([second]))
    _compare("padded", alone, _likelihood(model, batching.collate([first, second])), config)
    if config.data.packing:
        _compare("packed", alone, _likelihood(model, batching.pack([first, second])), config)
        _check_isolation(model, second, words, config)


def _check_attention(model: nn.Module, sample: Sample, loaded: Loaded, config: Config[LanguageOptions]) -> None:
    """Whether attention sample by sample gives what this model's own gives under a mask, also in rows too long to be tried."""
    shape: Any = loaded.model.config
    if shape._attn_implementation not in (varlen_attention.LOOP, varlen_attention.KERNEL):
        return
    with varlen_attention.stock(shape):
        masked = _likelihood(model, batching.collate([sample]))
    with varlen_attention.compared(config.train.micro_tokens):
        found = _likelihood(model, batching.collate([sample]))
    if _apart(masked, found, config):
        raise UserError(
            f"this model's loss of one sample is {masked:.6g} nats by sdpa under a mask and {found:.6g} by varlen, so it would be trained "
            f"on another attention than its own, with options.attention: {_attention(config)}; take sdpa or eager"
        )


def _check_isolation(model: nn.Module, sample: Sample, words: int, config: Config[LanguageOptions]) -> None:
    """Behind other samples of one length a sample's likelihood must be the very same: the shapes are, so the rounding is."""
    found = {_likelihood(model, batching.pack([_sample(7, start, words, learned=False), sample])) for start in (3, 11, 19)}
    if len(found) > 1:
        raise UserError(
            f"packed samples see each other in this model ({' and '.join(f'{each:.9g}' for each in sorted(found))} nats for the same "
            f"sample behind others), with options.attention: {_attention(config)}; train with data.packing: false"
        )


def _attention(config: Config[LanguageOptions]) -> str:
    return config.options.attention


def _sample(size: int, start: int, words: int, learned: bool = True) -> Sample:
    return {"ids": (torch.arange(size) * 7 + start) % words, "supervised": torch.full((size,), learned)}


@torch.no_grad()
def _likelihood(model: nn.Module, batch: Batch) -> float:
    device = next(model.parameters()).device
    nll, _ = model({name: tensor.to(device) for name, tensor in batch.tensors.items()}, batch.lengths)
    return float(nll)


def _compare(how: str, alone: float, together: float, config: Config[LanguageOptions]) -> None:
    if _apart(alone, together, config):
        raise UserError(
            f"this model's loss of two samples is {alone:.6g} nats when each is alone and {together:.6g} when they are {how}, so they "
            f"would be trained on wrong positions or on each other, with options.attention: {_attention(config)}; "
            "try options.attention: sdpa or eager, or data.packing: false"
        )


def _apart(wanted: float, found: float, config: Config[LanguageOptions]) -> bool:
    return abs(found - wanted) > TOLERANCE[config.train.precision] * abs(wanted)
