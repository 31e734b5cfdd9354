"""The model that a recipe builds: without values, with what is needed to load, shard and train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal

from typing_extensions import TypeVar

from overtone.finetune.recipe.recipe_state import RecipeState
from overtone.finetune.recipe.samples import Batch, OptionsT, Sample

if TYPE_CHECKING:
    from torch import Generator, Size, Tensor, nn

    from overtone.finetune.storage.tensor_layouts import TensorLayout


BASE_DISTANCE = "base_distance"
"""The term of the loss that `train.base_distance` adds."""
BASE_STATES = "base_states"
"""Key of the base's states in `Batch.tensors`."""
REFERENCE = "reference"
"""Key of the base's predictions in `Batch.tensors`."""
DIVERGENCE = "divergence"
"""Key of the estimate of a `Divergence` in `Batch.tensors`."""


def _accept_every_name(_: str) -> bool:
    return True


@dataclass(frozen=True)
class BaseDistance:
    """Comparison of predictions with those of the frozen base, for `train.base_distance`.

    With the base's states in `batch.tensors[BASE_STATES]`, `Recipe.loss` passes them to the `LossHead` (finetune/modeling/loss_head.py) as
    its third argument, and returns the third sum as the term `BASE_DISTANCE`; the training sets its weight.
    """

    states: Callable[[nn.Module, Batch], Tensor]
    """One forward of the model or of its base → the states [N, H] that the head gets for the same predictions. Called without gradients,
    in eval mode."""
    head: Callable[[nn.Module], str]
    """The path of that head in the model. It must be a `LossHead`, whose weights are those of the base or trained, without an adapter."""
    term: str
    """The term of the loss that has the same targets, one for each of the N predictions."""


LoadedT = TypeVar("LoadedT", covariant=True, default=object)
"""The processor's type, for a reader of `Loaded`."""
ProcessorT = TypeVar("ProcessorT")


@dataclass(frozen=True)
class Reference(Generic[OptionsT]):
    """Predictions of the frozen base with which the loss of a recipe compares its own, such as those of a preference objective."""

    predict: Callable[[nn.Module, Batch], Tensor]
    """One forward of the base → the predictions [N] that `Recipe.loss` gets in `batch.tensors[REFERENCE]`, sample by sample. Called without
    gradients, in eval mode."""
    needed: Callable[[OptionsT], bool]
    """Returns whether the loss needs them with these options."""
    divergence: Divergence[OptionsT] | None = None
    """Estimate over all rows of a step of how far the model is from the base. Absent: the loss needs none."""
    cache: PredictionCache[OptionsT] | None = None
    """Predictions that are computed once for each row. Absent: they are computed in each step."""


@dataclass(frozen=True)
class PredictionCache(Generic[OptionsT]):
    """Predictions of the base for all rows, computed before the first step and kept in the run's cache. The recipe must have no `augment`,
    because a sample must be the same in each epoch."""

    needed: Callable[[OptionsT], bool]
    """Returns whether the options choose it."""
    count: Callable[[Batch], list[int]]
    """(batch of `Recipe.collate` or `pack`) → number of predictions of each of its samples."""


@dataclass(frozen=True)
class Divergence(Generic[OptionsT]):
    """An estimate of KL(model‖base) that the loss of each row of a step needs: the mean, over the rows of the step on all ranks, of the
    model's log-probability of another row's answer minus the base's.

    It is computed without gradients before the loss of the step, and put into `batch.tensors[DIVERGENCE]`, a scalar. The other row is the
    nearest one before it in the data file whose prompt differs, and the last row precedes the first; so the estimate depends on the rows of
    the step, and on neither micro-batches nor ranks. An evaluation has one estimate, over all its rows.

    A prompt with another row's answer has at most as many positions as the longest row of its file: the answer is cut there, because the
    model may have no more positions. Those of a micro-batch are divided into batches of at most `train.micro_tokens`.
    """

    needed: Callable[[OptionsT], bool]
    """Returns whether the loss needs it with these options."""
    mismatch: Callable[[Sample, Sample, int], Sample | None]
    """(sample of a row, sample of another one, largest number of positions) → the first's prompt with the other's answer, cut at that
    number; None if they have the same prompt. `Reference.predict` predicts a batch of such samples."""


@dataclass(frozen=True)
class Loaded(Generic[LoadedT]):
    """A model without values, and what is needed to load, shard and train it."""

    model: nn.Module
    """Parameters on the meta device, buffers real. `forward(tensors)` must reach every trainable parameter (sharding hooks in there)."""
    processor: LoadedT
    """The second argument of `read`: tokenizer, ids, speaker table."""
    blocks: tuple[type[nn.Module], ...]
    """The classes that are sharded, checkpointed and compiled one by one."""
    base: Path
    """Folder whose *.safetensors hold the parameters under the model's own names or as `layouts` say (a superset is fine), except the
    `added` ones."""
    trainable: Callable[[str], bool] = _accept_every_name
    """Returns whether full fine-tuning trains a parameter, by its name, besides the `added` ones; the others stay frozen and out of the
    checkpoints."""
    lora_targets: str | None = None
    """Regular expression over names of modules that LoRA adapts with these options, unless model.lora.targets is set. None:
    `Recipe.lora_targets`."""
    added: Mapping[str, Callable[[Generator, Size], Tensor]] = field(default_factory=dict)
    """Parameters that the base lacks, or whose values in it are replaced (a head for other classes): name → function that returns the
    initial value [shape] from a CPU generator, which `run.seed` and the name determine. They are always trained, beside adapters too."""
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)
    """Parameter name → of which tensors of `base` it consists, where it is not one of them: transformers renames modules and computes all
    experts of a layer as one parameter, and a base without a head lacks a prefix. Checkpoints have the model's parameters;
    `ExportPlan.layouts` must be the same ones."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Values of persistent buffers; they are saved with each checkpoint."""
    state: RecipeState = field(default_factory=RecipeState)
    """A `Recipe.State`: what export needs (speaker names, for example); stored in each checkpoint's state.json, and compared on resume."""
    tensor_plans: Mapping[str, Mapping[str, Literal["outputs", "inputs", "heads"]]] = field(default_factory=dict)
    """Plans for `parallel.tensor`: `module.ClassName` of a block → path of each module that its ranks share → how it is divided (`Cut` in
    finetune/distributed/tensor_parallel.py). A model with another block cannot be trained with `parallel.tensor`."""
    varies: str | None = None
    """The reason why blocks would be recompiled again and again, so that `train.compile: auto` does not compile them; None: they would
    not."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version affects what `read` returns, such as an image decoder, besides those of `sample_cache_key.LIBRARIES`."""
    remarks: tuple[str, ...] = ()
    """Sentences for the log before the first step."""

    def with_processor(self, processor: ProcessorT) -> Loaded[ProcessorT]:
        """The same model with another processor."""
        return Loaded(**{**vars(self), "processor": processor})
