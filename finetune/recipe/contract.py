"""The contract of a recipe: a frozen set of functions.

`recipes/<name>/recipe.py` defines one `RECIPE = Recipe(...)`. Training uses a model only through these functions, so a new recipe is a new
folder and needs no other edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from overtone.finetune.recipe.export_plan import ExportPlan
from overtone.finetune.recipe.inference import Inference
from overtone.finetune.recipe.loaded_model import BaseDistance, Loaded, Reference
from overtone.finetune.recipe.planning import Sketch
from overtone.finetune.recipe.recipe_state import RecipeState, StateT
from overtone.finetune.recipe.rollouts import Rollouts
from overtone.finetune.recipe.samples import POSITIONS, Batch, ContextRows, OptionsT, ProcessorT, Row, Sample, Term

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from overtone.finetune.config import Config


def _count_ids(sample: Sample) -> int:
    return len(sample["ids"])


def _list_nothing(_: Row, __: object) -> Iterable[str]:
    return ()


def _name_no_files(_: Row) -> tuple[str, ...]:
    return ()


def _prepare_nothing(_: Config) -> None:
    return None


def _verify_nothing(_: nn.Module, __: Loaded, ___: Config) -> None:
    return None


def _keep_means(means: dict[str, float]) -> dict[str, float]:
    return means


@dataclass(frozen=True)
class Recipe(Generic[OptionsT, StateT, ProcessorT]):
    """The contract. The shapes of samples and batches are in each recipe's own docstrings."""

    Options: type[OptionsT]
    """The config's `options` section. Of a recipe with an `options.py`, the class of that name in it."""
    load: Callable[[Config[OptionsT]], Loaded[ProcessorT]]
    """Build the model on meta. Called on every rank, after `prepare`."""
    read: Callable[[Row, ProcessorT, Path], Sample]
    """(row, processor, the data file's folder) → tensors of one sample; raises `UserError` that says what is wrong (the caller adds file
    and line). Called once a row, before training, in any process. Its result is cached, so it may depend on nothing else, randomness
    included, except the files that `files` names."""
    collate: Callable[[list[Sample]], Batch]
    """Samples as one micro-batch."""
    loss: Callable[[nn.Module, Batch], dict[str, Term]]
    """One forward of the model; returns the loss terms by name, the keys of `Batch.targets`."""
    export: Callable[[Path, StateT, dict[str, Tensor], str], ExportPlan]
    """(base folder, state of the checkpoint, buffers, format) → plan."""
    formats: tuple[str, ...]
    """Export formats, the default first."""
    inference: Inference
    """Uses of an exported model."""
    length: Callable[[Sample], int] = _count_ids
    """Positions that a sample occupies: what `micro_tokens` and `global_batch_tokens` count. Absent: the length of its tensor `ids`."""
    State: type[StateT] = RecipeState  # type: ignore[assignment]  # the default of StateT
    """The keys that the recipe stores with each checkpoint, `Loaded.state`. Absent: none."""
    lora_targets: str = "all-linear"
    """Regular expression over names of modules that LoRA adapts, unless model.lora.targets is set, or `load` chooses others by the options
    (`Loaded.lora_targets`)."""
    files: Callable[[Row], Iterable[str]] = _name_no_files
    """The files that `read` opens for a row, as paths relative to the data file's folder. Each must exist, and the rows are read again if
    one has another size or time of change than before. It gets the row before `read` has checked it, and may raise `UserError` too."""
    list_unused: Callable[[Row, ProcessorT], Iterable[str]] = _list_nothing
    """(row, processor) → what `read` does not use of a row that it has accepted, as phrases such as `key id of messages`. The log counts
    the rows with each phrase."""
    context: ContextRows[OptionsT, ProcessorT] | None = None
    """Earlier rows as part of a row's sample. Absent: a sample depends on its row alone."""
    prepare: Callable[[Config[OptionsT]], None] = _prepare_nothing
    """Called once per launch, on one process, before `load`: caches under `run.dir` what is derived from data and base."""
    base_distance: BaseDistance | None = None
    """Comparison of the model with its base. Absent: `train.base_distance` is refused."""
    reference: Reference[OptionsT] | None = None
    """Predictions of the frozen base that `loss` needs. With adapters, the base is the model without them; otherwise it is a frozen,
    sharded copy. Absent: none."""
    rollouts: Rollouts[OptionsT, ProcessorT] | None = None
    """The samples of `read` are prompts, and `collate` and `pack` get the model's own answers to them. Absent: they get the samples of
    `read`."""
    pack: Callable[[list[Sample]], Batch] | None = None
    """`collate` for `data.packing`: samples end to end in one row, none attending to another. Absent: the recipe cannot pack."""
    pad: Callable[[Batch, int], Batch] | None = None
    """(what `pack` made, positions) → the same in a row of so many positions, for compiled blocks, which are compiled anew for each shape;
    no target, and no sum over targets, changes. Absent: blocks are compiled for sizes that vary."""
    augment: Callable[[Sample, ProcessorT, Generator], Sample] | None = None
    """(sample, processor, CPU generator) → a random variant of the sample, of the same length, such as another crop of an image. Called on
    the loader's thread each time a sample is trained, and not in an evaluation. The generator is seeded by `run.seed`, the epoch and the
    row, so a variant depends neither on the micro-batch nor on the ranks nor on a resume. It must leave the given tensors unchanged."""
    truncate: Callable[[Sample, int], Sample] | None = None
    """(sample, positions) → its beginning, for `data.too_long: truncate`. Absent: a cut sample would teach something wrong."""
    verify: Callable[[nn.Module, Loaded[ProcessorT], Config[OptionsT]], None] = _verify_nothing
    """Before the first step, with the sharded and filled model in eval mode: raise `UserError` if it does not do what `loss` and `pack`
    rely on. Collective: called on every rank."""
    report: Callable[[dict[str, float]], dict[str, float]] = _keep_means
    """The means of a step or an evaluation, with derived metrics for the log (a perplexity from a mean log-likelihood)."""
    unit: str = POSITIONS
    """Unit of `length`, in the plural, for the console: tokens, frames, images."""
    show: Callable[[Sample, ProcessorT], str] | None = None
    """(sample, processor) → text for a terminal in which what is supervised stands out, for `overtone plan --show-batch`."""
    base_folders: tuple[str, ...] = ()
    """Folders in a base that `load`, `read` or `export` reads besides the files at its top; both are part of the base's digest."""
    sketch: Callable[[Config[OptionsT]], Sketch[ProcessorT]] | None = None
    """The base in shape only, for `overtone plan`. Absent: `prepare` and `load` are called, and the first rows of the data are read."""
