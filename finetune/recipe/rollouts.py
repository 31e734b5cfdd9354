"""Batches that depend on the current weights: a recipe answers the prompts of a step, and trains on the answers.

The data gives the prompts in the usual order. Before a step's forward pass, `RolloutWorker` turns them into samples of `Recipe.collate`.
An answer is a function of the weights, `run.seed`, the step, the row and its number among the row's answers, so that it depends neither on
the ranks nor on the micro-batches nor on a resume. So is a prompt that replaces one whose answers teach nothing (`Rollouts.replacements`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypedDict

from overtone.finetune.recipe.loaded_model import Loaded
from overtone.finetune.recipe.samples import OptionsT, ProcessorT, Sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AnswerRecord(TypedDict):
    """An answer in rollouts.jsonl."""

    text: str
    tokens: int
    ended: bool
    """False: it was cut off."""
    reward: float
    """Weighted sum of its rewards."""
    rewards: dict[str, float]
    """Each reward by its name."""
    failures: list[str]
    """Rewards that could not be computed, and why."""
    advantage: float


class RolloutRecord(TypedDict):
    """The answers to a prompt in rollouts.jsonl."""

    prompt: str
    flat: bool
    """True if all answers have the same reward, so that nothing is learned from them."""
    answers: list[AnswerRecord]


class LoggedRollout(RolloutRecord):
    """A line of rollouts.jsonl."""

    step: int
    row: str
    """File and line of the row."""
    replaces: list[str]
    """Files and lines of the prompts that were answered in its place before, in this order. Nothing is learned from their answers."""


@dataclass(frozen=True)
class PromptRow:
    """A row whose prompt is to be answered."""

    row: int
    """Its number in the data."""
    where: str
    """Its file and line."""
    sample: Sample
    """The result of `Recipe.read`."""
    earlier: int = 0
    """Number of times that the step draws the row before, over all ranks: above 0 only if a mixture repeats its source."""
    replaces: tuple[int, ...] = ()
    """Rows whose prompts were answered in its place before, the first of which the step has drawn. With `row` and `earlier`, it is unique
    within a step."""


@dataclass(frozen=True)
class Rollout:
    """The answers to one prompt."""

    samples: list[Sample]
    """The answers as samples of `Recipe.collate`; at least one."""
    record: RolloutRecord
    can_be_replaced: bool = False
    """True if its answers teach nothing, and those to another prompt may."""


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of a run on which its rollouts depend."""

    seed: int
    """`run.seed`."""
    dtype: torch.dtype
    """The compute type of training, in which the answers are generated."""
    device: torch.device


class RolloutWorker(Protocol):
    """Answers prompts on one rank."""

    slots: int
    """Maximum number of answers that are generated at once."""

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the current weights: the whole value of each parameter of the base, with adapters merged, by its name. All of them must
        be read, since reading is collective."""

    def answer(self, prompts: Sequence[PromptRow], step: int | None) -> list[Rollout]:
        """Return the answers to each prompt, for a step of training, or, with None, for an evaluation. Raises `UserError`."""

    def make_filler(self, prompt: Sample, step: int | None) -> list[Sample]:
        """Return samples with the tensors of a rollout that teach nothing, for a rank without prompts."""

    def close(self) -> None:
        """End processes and threads. A second call does nothing."""


@dataclass(frozen=True)
class Rollouts(Generic[OptionsT, ProcessorT]):
    """Answers to the prompts of each step, from which its batches are made."""

    open: Callable[[Loaded[ProcessorT], OptionsT, RolloutSettings], RolloutWorker]
    """Called once for a launch, on every rank, with the model on the meta device. It must not need the model's weights."""
    check: Callable[[Mapping[str, float], OptionsT], None]
    """(means of a step) → raises `UserError` if the step must not be applied. Called on one rank before the update."""
    count_bytes: Callable[[Loaded, OptionsT, int, int], int]
    """(model, options, bytes of a number in the compute type, `train.micro_tokens`) → memory that the rollouts take on each rank."""
    measure: Callable[[Sample], int] = lambda sample: len(sample["ids"])
    """(answer, as a sample of `Recipe.collate`) → its positions."""
    replacements: Callable[[OptionsT], int] = lambda _: 0
    """Largest number of prompts that may be answered one after the other in the place of one of the step, while `can_be_replaced`."""
