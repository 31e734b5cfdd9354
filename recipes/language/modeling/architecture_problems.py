"""Checks, before weights are loaded, what the loss assumes about an architecture: that a sample has the loss of the stock model, and the
same alone, padded and packed.

It is decided on a model of the same class with small widths and random weights, in fp64, so that rounding cannot be taken for a difference,
or hide one; in fp32 where layers of the architecture cannot compute in fp64. Samples are tried on both sides of each length at which the
config says that something changes (`shrunk_config`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Batch, Sample
from overtone.finetune.storage.strict_json import one_line
from overtone.recipes.language import collation
from overtone.recipes.language.modeling.causal_model import CausalModel, find_block_classes
from overtone.recipes.language.modeling.shrunk_config import ShrunkConfig, shrink
from overtone.recipes.transformers_meta_models import without_initialization

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MOST_PARAMETERS = 3 * 10**7
"""Maximum parameters of a shrunk model: 0.25 GB in fp64."""
BOUND = 1e-4
"""Largest difference of states, relative to their root mean square, that counts as rounding. Some layers compute in fp32 in an fp64 model
(norms, softmax), which makes 1e-6 at most; another mask or another rotary table makes 1e-2 and more with weights of this size."""
LOSS_BOUND = 1e-5
"""The same of a sample's loss, which the head computes in fp32."""
IN_FP32 = 10
"""By how much both are wider in fp32: rounding makes 1e-5 at most there."""


@dataclass(frozen=True)
class ArchitectureProblems:
    """Problems of an architecture; None where there is none."""

    unchecked: str | None = None
    """The reason why nothing could be checked."""
    loss: str | None = None
    """Difference between the loss of a sample and that of the stock model."""
    together: str | None = None
    """Difference between samples in a packed row, or padded side by side, and each alone."""


_known: dict[str, ArchitectureProblems] = {}
"""A process loads a model several times, for weights, data and samples."""


def find_architecture_problems(model: CausalModel, attention: str, packing: bool, sample: int, row: int) -> ArchitectureProblems:
    """`model`: on meta. `attention`: name of the implementation in transformers. `sample`, `row`: the most positions of a sample and of a
    packed row in the run."""
    key = json.dumps([type(model.config).__name__, model.config.to_dict(), attention, packing, sample, row], sort_keys=True, default=str)
    if key not in _known:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _known[key] = _check(model, attention, packing, sample, row)
    return _known[key]


@torch.no_grad()
def _check(model: CausalModel, attention: str, packing: bool, sample: int, row: int) -> ArchitectureProblems:
    problem = ""
    try:
        blocks = find_block_classes(model)
        candidates = list(shrink(_buildable(model.config), model.get_submodule(model.decoder_path), blocks, sample, row))
    except Exception as error:  # a config with values of other kinds than those of known architectures
        candidates, problem = [], _describe(error)
    for candidate in candidates:
        for dtype in (torch.float64, torch.float32):
            try:
                stock = _randomize(_build(candidate.config, "eager", dtype))
                expected = _run_stock(stock, candidate)
            except Exception as error:  # widths that do not fit together fail in many ways
                problem = problem or _describe(error)
                continue
            return _compare(candidate.config, stock, expected, attention, packing)
    return ArchitectureProblems(unchecked=problem)


def _buildable(config: PretrainedConfig) -> Any:
    """The text part of a config, if transformers has a causal language model for it alone."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    return text if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING else config


def _build(config: PretrainedConfig, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    """A model of transformers. Raises ValueError for one that is not small."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    def make() -> Any:
        copied = copy.deepcopy(config)
        copied._experts_implementation = "eager"  # transformers 5 groups experts in a kernel that has no fp64
        return AutoModelForCausalLM.from_config(copied, attn_implementation=attention, dtype=torch.float32)

    with init_empty_weights(include_buffers=False), without_initialization():
        size = sum(parameter.numel() for parameter in make().parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters are left")
    return make().to(dtype).eval()


def _randomize(whole: PreTrainedModel) -> Any:
    """Weights large enough that each part of the model matters."""
    for parameter in whole.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return whole


def _run_stock(stock: PreTrainedModel, candidate: ShrunkConfig) -> list[tuple[Sample, float]]:
    """Samples and their losses, each by a copy of the model, as a forward may change its state. Without the samples that are too long for
    the model."""
    vocabulary, found = int(stock.get_output_embeddings().out_features), list[tuple[Sample, float]]()
    samples: list[Sample] = [
        {"ids": torch.randint(vocabulary, (length,)), "supervised": torch.ones(length, dtype=torch.bool)} for length in candidate.lengths
    ]
    for sample in sorted(samples, key=lambda each: len(each["ids"])):
        try:
            logits = copy.deepcopy(stock)(input_ids=sample["ids"][None], use_cache=False).logits[0, :-1]
        except IndexError:  # beyond a table of positions
            if not found:
                raise
            break
        found.append((sample, float(functional.cross_entropy(logits, sample["ids"][1:], reduction="sum"))))
    return found


def _compare(
    config: PretrainedConfig, stock: PreTrainedModel, expected: list[tuple[Sample, float]], attention: str, packing: bool
) -> ArchitectureProblems:
    samples, alone = [sample for sample, _ in expected], list[Tensor]()
    try:
        dtype = next(stock.parameters()).dtype
        rounding = 1 if dtype == torch.float64 else IN_FP32
        whole = _build(config, attention, dtype)
        whole.load_state_dict(stock.state_dict())
        own = CausalModel(whole)
        for sample, loss in expected:
            alone.append(states := _compute_states(own, collation.collate([sample])))
            nll = float(own.get_submodule(own.head_path)(states, sample["ids"][1:])[0])
            if not abs(nll - loss) <= LOSS_BOUND * rounding * abs(loss):
                return ArchitectureProblems(loss=f"{nll:.8g} instead of {loss:.8g} nats for a sample of {len(sample['ids'])} tokens")
    except Exception as error:  # what an attention does not support fails in its own way
        return ArchitectureProblems(loss=_describe(error))
    # The shortest between the longest: what a row remembers from a sample must not reach the next.
    order = sorted(range(len(samples)), key=lambda number: (number % 2, -number))
    make_batch = collation.pack if packing else collation.collate
    return ArchitectureProblems(together=_compare_together(own, samples, alone, order, make_batch, BOUND * rounding))


def _compare_together(
    own: CausalModel,
    samples: list[Sample],
    alone: list[Tensor],
    order: list[int],
    make_batch: Callable[[list[Sample]], Batch],
    bound: float,
) -> str | None:
    for numbers in (order, order[::-1]):
        try:
            states = _compute_states(own, make_batch([samples[number] for number in numbers]))
        except Exception as error:  # as above
            return _describe(error)
        for number, found in zip(numbers, states.split([len(alone[number]) for number in numbers]), strict=True):
            difference = float((found - alone[number]).abs().max() / alone[number].square().mean().sqrt())
            if not difference <= bound:
                return f"the states of a sample of {len(samples[number]['ids'])} tokens differ by {difference:.1e} from those alone"
    return None


def _compute_states(model: CausalModel, batch: Batch) -> Tensor:
    """States [M, H] from which the M targets are predicted."""
    states = model(batch.tensors, batch.lengths, "states")
    assert isinstance(states, Tensor)
    return states


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {one_line(error):.200}"
