"""A causal language model whose output head is replaced by one that returns values of a whole sequence, read at its last token.

Parameters keep the names of transformers' class for sequence classification: those of the decoder, and `score.weight`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Size, Tensor, nn
from torch.nn import functional

from overtone.finetune.errors import UserError
from overtone.recipes import transformers_meta_models
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.language.sequence_scorer import sequence_classifier

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "score"
WEIGHT = f"{HEAD}.weight"
HEAD_STD = 0.02
"""Standard deviation of a new head; transformers' usual `initializer_range`."""


class ScoreHead(nn.Module):
    """A linear layer without bias that computes in fp32 at least: in bf16, rewards between 4 and 8 would have steps of 1/32. It is no
    nn.Linear, because it gets no adapter: LoRA trains a new head as a whole."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, width, device="meta"))

    def forward(self, states: Tensor) -> Tensor:
        """States [N, H] → values [N, outputs]."""
        dtype = torch.promote_types(states.dtype, torch.float32)
        return functional.linear(states.to(dtype), self.weight.to(dtype))


class SequenceScorer(nn.Module):
    """The decoder of a `CausalModel`, with a `ScoreHead` in place of its output head."""

    causal: CausalModel

    def __init__(self, causal: CausalModel, outputs: int, centering: float = 0.0) -> None:
        """Takes the modules of `causal`, and removes its output head. `centering`: `Options.centering`, which the loss reads here."""
        super().__init__()
        parent, _, name = causal.head_path.rpartition(".")
        width = causal.get_submodule(causal.head_path).weight.shape[1]  # type: ignore[index]
        delattr(causal.get_submodule(parent), name)
        causal.add_module(HEAD, ScoreHead(int(width), outputs))
        self.__dict__["causal"] = causal  # past nn.Module, which would put `causal.` before every name
        self._modules = causal._modules  # the dict itself: a layer that gets an adapter gets it in both
        self.config, self.vocabulary, self.centering = causal.config, causal.vocabulary, centering

    def forward(self, tensors: dict[str, Tensor], lengths: tuple[int, ...] = (), result: Literal["values", "states"] = "values") -> Tensor:
        """Values [N, outputs] of the N positions in `tensors["supervised"]`, fp32; as `result: states`, their states [N, H].
        The other tensors and `lengths` are those of `CausalModel.forward`."""
        states = self.causal.forward(tensors, lengths, "states")
        assert isinstance(states, Tensor)
        if result == "states":
            return states
        values: Tensor = self.get_submodule(HEAD)(states)
        return values


class StatesAsLogits(nn.Module):
    """A scorer as `loss_assumption_checks` calls a language model: its states are the logits of as many tokens. Unlike the values of a new
    head, these sums are not near 0."""

    def __init__(self, scorer: nn.Module) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, tensors: dict[str, Tensor], lengths: tuple[int, ...]) -> tuple[Tensor, None]:
        """The negative log-likelihood [] in nats, summed over the targets."""
        states = self.scorer(tensors, lengths, "states").float()
        targets = tensors["targets"].flatten().index_select(0, tensors["supervised"]) % states.shape[1]
        return functional.cross_entropy(states, targets, reduction="sum"), None


def build_stock(base: Path, outputs: int) -> PreTrainedModel:
    """transformers' own class with its parameters on the meta device. Raises `UserError` for a base without such a class, and for one that
    reads its value in another way than at the last token."""
    from transformers import AutoModelForSequenceClassification

    config = transformers_meta_models.read_config(base, sequence_classifier())
    config.num_labels = outputs
    whole: PreTrainedModel = transformers_meta_models.build_on_meta(lambda: AutoModelForSequenceClassification.from_config(config), base)
    head = getattr(whole, HEAD, None)
    if not isinstance(head, nn.Linear) or "bias" in dict(head.named_parameters()):
        raise UserError(
            f"{base}: {type(whole).__name__} of transformers does not read its value at the last token by a linear layer {HEAD}; give a "
            "decoder such as Qwen3 or Llama"
        )
    return whole


def check_names(model: SequenceScorer, whole: PreTrainedModel, base: Path) -> None:
    """Raises `UserError` if the class of transformers has other parameters than the model that is trained."""
    expected = {name: parameter.shape for name, parameter in whole.named_parameters()}
    found = {name: parameter.shape for name, parameter in model.named_parameters()}
    if different := sorted({name for name in {*expected, *found} if expected.get(name) != found.get(name)}):
        raise UserError(
            f"{base}: {type(whole).__name__} of transformers and the causal language model differ in {different[0]} ({len(different)} such "
            "parameters), so an export could not be loaded; give another base"
        )


def init_head(generator: Generator, shape: Size) -> Tensor:
    """Initial values of a head [outputs, H]: small random numbers."""
    return torch.randn(shape, generator=generator) * HEAD_STD
