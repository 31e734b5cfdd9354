"""Changes that a model of transformers makes to its logits after the output head: a factor (Cohere, Granite, Falcon-H1), a soft cap
(Gemma).

It is measured on the model's own forward, since each architecture has its own name for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import Shaping

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL, HUGE = 2.0**-20, 2.0**40
"""Logits that a soft cap leaves as they are, to the last bit of fp32, and that it replaces by itself. Powers of two, so that a factor is
measured exactly."""


class _StandIn(nn.Module):
    """Replaces a part of a model: records its input and returns a given output. It has the attributes of what it replaces."""

    def __init__(self, replaced: nn.Module, output: Any) -> None:
        super().__init__()
        self.__dict__["replaced"] = replaced  # no submodule
        self.output = output
        self.input: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["replaced"], name)

    def forward(self, *given: Any, **_: Any) -> Any:
        self.input = given[0] if given else None
        return self.output


class _DecoderOutput(tuple[Tensor]):
    """A decoder's output with `last_hidden_state`; any other attribute is None."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def measure_shaping(whole: PreTrainedModel, decoder_path: str, head_path: str) -> Shaping:
    """Return what the model's own forward does to its logits. Raises `UserError` unless it passes the decoder's states to the head
    unchanged, and changes the logits by a factor and a soft cap at most.

    For one call, the decoder and the head are replaced by stand-ins, so no weights are needed.
    """
    head = whole.get_submodule(head_path)
    states = torch.linspace(-3, 3, 2 * head.in_features).view(1, 2, -1)
    logits = torch.linspace(-60, 60, 2 * head.out_features).view(1, 2, -1)
    logits[0, 0, 0], logits[0, 1, 0] = SMALL, HUGE
    decoder = _StandIn(whole.get_submodule(decoder_path), _DecoderOutput((states,)))
    output_head = _StandIn(head, logits.clone())
    problem = ""
    with _replace_modules(whole, {decoder_path: decoder, head_path: output_head}), torch.no_grad():
        try:
            found = whole(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False).logits
        except Exception as error:  # a forward that needs more of the decoder than its states fails in its own way
            found, problem = None, f" ({type(error).__name__}: {error})"
    received = output_head.input
    if found is not None and found.shape == logits.shape and isinstance(received, Tensor) and torch.equal(received, states):
        scale, most = float(found[0, 0, 0]) / SMALL, float(found[0, 1, 0])
        shaping = Shaping(scale, None if most == scale * HUGE else most)
        if torch.allclose(found.float(), _shape(logits, shaping), rtol=1e-5):
            return shaping
    raise UserError(
        f"{type(whole).__name__} changes its states or logits in a way that this recipe's loss does not support{problem}, so the loss "
        "would not be the model's own; it cannot be trained"
    )


def _shape(logits: Tensor, shaping: Shaping) -> Tensor:
    scaled = logits * shaping.scale
    return scaled if shaping.cap is None else shaping.cap * torch.tanh(scaled / shaping.cap)


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
