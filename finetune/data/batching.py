"""Batching: the order of samples, micro-batches and optimizer steps as a pure function of (seed, epoch, position), and the batch loader.

The order of an epoch is a keyed permutation, divided into windows. A window is bucketed by length, or packed, into micro-batches of at
most `micro_tokens` positions. An optimizer step takes as many as come near to `global_batch_tokens`. None of this depends on the number of
ranks, which take a step's micro-batches in turn. So a position in the data is three integers, and resuming needs no search.

With a mixture (finetune/data/mixture.py), a window has each source's share of samples, and each micro-batch has samples of one source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overtone.finetune.config import Data, Train
from overtone.finetune.data import cached_samples, sample_serialization
from overtone.finetune.data.cached_samples import Ids, RowPredictions, Rows, suggest_rebuild
from overtone.finetune.data.keyed_permutation import derive_key, permute
from overtone.finetune.data.mixture import MixedLengths, MixedRows
from overtone.finetune.data.packing import best_fit, fill
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.recipe import REFERENCE, Batch, Recipe, Sample
from overtone.finetune.storage import strict_json

PHASES = 2**20
"""Number of different places in a window at which the first micro-batch of a source may be."""


@dataclass(frozen=True)
class Place:
    """Position in the data: the next micro-batch to train on."""

    epoch: int = 0
    window: int = 0
    micro: int = 0


@dataclass(frozen=True)
class MicroBatch:
    ids: tuple[int, ...]
    """Row numbers in the data file."""
    tokens: int
    """Positions without padding."""
    key: int
    """Seed of all randomness of its forward pass."""
    packed: bool = False
    """True if samples are packed end to end; otherwise they are padded."""
    source: int | None = None
    """Number of the mixture's source that its samples are from; None without a mixture."""
    window: int | None = None
    """Key of its window of the epoch, which with a row's number seeds the augmentation of that row; None: no sample is augmented."""


@dataclass(frozen=True)
class Step:
    """The micro-batches of one optimizer step, of all ranks."""

    micros: tuple[MicroBatch, ...]
    after: Place
    """Position of the next step."""

    @property
    def tokens(self) -> int:
        return sum(micro.tokens for micro in self.micros)


@dataclass(frozen=True)
class Order:
    """All settings that determine the order of samples. Stored in each checkpoint, since another order would repeat or skip rows."""

    seed: int
    window: int
    micro_tokens: int
    global_batch_tokens: int
    packing: bool = False

    @classmethod
    def of(cls, seed: int, data: Data, train: Train) -> Order:
        """Return the order with a number as `train.global_batch_tokens`; with `auto`, that of the largest step. `seed`: `run.seed`."""
        return cls(seed, data.window, train.micro_tokens, train.batch_tokens, data.packing)

    @property
    def step_tokens(self) -> int:
        """Positions of a step of full micro-batches."""
        return max(1, -(-(self.global_batch_tokens - self.micro_tokens // 2) // self.micro_tokens)) * self.micro_tokens

    def as_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Order | None:
        """Return the order in a checkpoint; None if a value is missing or out of range, so that it cannot be the order of a run."""
        names = {each.name for each in fields(cls)}
        is_whole = values.keys() == names and min(values["micro_tokens"], values["global_batch_tokens"], values["window"]) >= 1
        return cls(**values) if is_whole else None


def micro_batches(order: Order, lengths: Ids | MixedLengths, epoch: int, window: int) -> list[MicroBatch]:
    """Return the micro-batches of one window, in the order of training. The last windows of a mixture's epoch may have none."""
    if isinstance(lengths, MixedLengths):
        return _mix_micro_batches(order, lengths, epoch, window)
    start = window * order.window
    positions = np.arange(start, min(start + order.window, len(lengths)))
    ids = permute(positions, len(lengths), derive_key(order.seed, epoch))
    by_length = ids[np.argsort(lengths[ids], kind="stable")]
    groups = (best_fit if order.packing else fill)(by_length, lengths[by_length], order.micro_tokens)
    # Without this shuffle, each window would be trained from its shortest to its longest samples.
    key = derive_key(order.seed, epoch, window)
    turns = permute(np.arange(len(groups)), len(groups), key)
    return [
        MicroBatch(
            tuple(groups[turn].tolist()),
            int(lengths[groups[turn]].sum()),
            derive_key(order.seed, epoch, window, place),
            order.packing,
            window=key,
        )
        for place, turn in enumerate(turns)
    ]


def _mix_micro_batches(order: Order, lengths: MixedLengths, epoch: int, window: int) -> list[MicroBatch]:
    """Return micro-batches as `micro_batches` does, for a mixture. Each source is bucketed or packed by itself, so that its loss can be
    summed without looking into the batches. Its micro-batches are spread evenly over the window, so that each step has about the share of
    the source, too."""
    start = epoch * len(lengths) + window * order.window
    end = min(start + order.window, (epoch + 1) * len(lengths))
    found: list[tuple[Fraction, int, Ids]] = []
    for source, key in enumerate(lengths.keys):
        ids = lengths.draw(source, start, end, order.seed)
        by_length = ids[np.argsort(lengths.of(source, ids), kind="stable")]
        groups = (best_fit if order.packing else fill)(by_length, lengths.of(source, by_length), order.micro_tokens)
        turns = permute(np.arange(len(groups)), len(groups), derive_key(order.seed, epoch, window, key))
        # The phase is drawn: otherwise, a source with one micro-batch per window would always be trained in the middle of it.
        phase = derive_key(order.seed, epoch, window, key, 1) % PHASES
        found += [(Fraction(place * PHASES + phase, len(groups) * PHASES), source, groups[turn]) for place, turn in enumerate(turns)]
    found.sort(key=lambda each: each[:2])
    window_key = derive_key(order.seed, epoch, window)
    return [
        MicroBatch(
            tuple(group.tolist()),
            int(lengths.of(source, group).sum()),
            derive_key(order.seed, epoch, window, place),
            order.packing,
            source,
            window_key,
        )
        for place, (_, source, group) in enumerate(found)
    ]


def steps(order: Order, lengths: Ids | MixedLengths, place: Place, epochs: int | None) -> Iterator[Step]:
    """Optimizer steps from `place` on; endless if `epochs` is None. A step never contains samples of two epochs.

    Micro-batches are not quite full. So a step ends once less than half of a full one is missing: a step of k full ones then has k of them,
    and no step has more than half a micro-batch too many.
    """
    windows = -(-len(lengths) // order.window)
    while epochs is None or place.epoch < epochs:
        taken: list[MicroBatch] = []
        tokens = 0
        for window in range(place.window, windows):
            micros = micro_batches(order, lengths, place.epoch, window)
            full = min(order.micro_tokens, sum(micro.tokens for micro in micros))  # a small window cannot fill one
            for number in range(place.micro if window == place.window else 0, len(micros)):
                taken.append(micros[number])
                tokens += micros[number].tokens
                if tokens + full // 2 >= order.global_batch_tokens:
                    place = Place(place.epoch, window, number + 1)
                    yield Step(tuple(taken), place)
                    taken, tokens = [], 0
        place = Place(place.epoch + 1)
        if taken:
            yield Step(tuple(taken), place)


def count_steps(order: Order, lengths: Ids | MixedLengths, epochs: int) -> int:
    return sum(1 for _ in steps(order, lengths, Place(), epochs))


@dataclass(frozen=True)
class RankBatch:
    """One micro-batch of one rank in a step."""

    micro: MicroBatch
    batch: Batch
    counts: bool
    """False for a filler: a rank without a micro-batch runs a small batch with weight 0, since all ranks must join the collectives."""
    mismatched: tuple[Batch, ...] = ()
    """Each sample's prompt with another row's answer, for a recipe with a `Divergence`, in batches of at most the loader's `largest`. Ranks
    can have different numbers of them."""
    prompts: tuple[Sample, ...] = ()
    """The samples, for a recipe with `Rollouts`, whose answers fill the batch, which is empty until then."""
    earlier: tuple[int, ...] = ()
    """For each row, the number of times that the step draws it before, over all ranks: a mixture can draw a row twice."""

    def map(self, change: Callable[[Tensor], Tensor]) -> RankBatch:
        """The same with other tensors."""

        def convert(batch: Batch) -> Batch:
            return replace(batch, tensors={name: change(tensor) for name, tensor in batch.tensors.items()})

        return replace(self, batch=convert(self.batch), mismatched=tuple(map(convert, self.mismatched)))


def count_earlier(micros: Sequence[MicroBatch]) -> list[tuple[int, ...]]:
    """Return for each row of a step's micro-batches how often it is in the step before."""
    drawn = Counter[int]()
    found = list[tuple[int, ...]]()
    for micro in micros:
        earlier = []
        for row in micro.ids:
            earlier.append(drawn[row])
            drawn[row] += 1
        found.append((*earlier,))
    return found


def lay_samples(recipe: Recipe, samples: list[Sample], packed: bool, fixed: int | None) -> Batch:
    """Return samples as one micro-batch. `fixed`: length to which packed rows are padded."""
    if not packed:
        return recipe.collate(samples)
    assert recipe.pack is not None  # finetune/data/dataset_opening.py has refused packing for recipes without `pack`
    batch = recipe.pack(samples)
    return batch if fixed is None or recipe.pad is None else recipe.pad(batch, fixed)


def read_sample(rows: Rows | MixedRows, recipe: Recipe, row: int) -> Sample:
    """Return the sample of a row as the recipe read it when the file was indexed, truncated to the trained positions. Raises `UserError`
    for a damaged cache."""
    try:
        sample = sample_serialization.decode(rows.sample(row))
    except UserError as error:
        raise UserError(f"{rows.where(row)}: {error}") from None
    except ValueError as error:  # its checksum matches, so it was written like this
        problem = f"its cached sample is invalid ({strict_json.one_line(error)}); {suggest_rebuild(rows.cache_of(row))}"
        raise UserError(f"{rows.where(row)}: {problem}") from None
    indexed = int(rows.lengths[row])
    if recipe.length(sample) > indexed and recipe.truncate is not None:
        return recipe.truncate(sample, indexed)
    return sample


class Loader:
    """Loads this rank's batches one step ahead of the training, on its own thread.

    Samples come from the sample cache, so the thread only reads and collates. It holds the interpreter lock for 1 to 4 % of a step
    (workshop/benchmarks/loader_interference.py).
    """

    def __init__(
        self,
        rows: Rows | MixedRows,
        recipe: Recipe,
        rank: int,
        size: int,
        pinned: bool = False,
        fixed: int | None = None,
        processor: Any = None,
        largest: int | None = None,
    ) -> None:
        """`pinned`: use page-locked memory, for asynchronous copies to a GPU. `fixed`: length to which packed rows are padded.
        `processor`: `Loaded.processor`, for recipes that augment. `largest`: positions of a batch of `RankBatch.mismatched`, padding
        included; None: those of a micro-batch are one batch."""
        self._rows, self._recipe, self._fixed, self._processor, self._largest = rows, recipe, fixed, processor, largest
        self._rank, self._size, self._pinned = rank, size, pinned
        self._other_prompts: dict[int, int] = {}
        """Row → the nearest one before it with another prompt, for rows after one with the same prompt."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")

    def iterate(self, todo: Iterator[Step]) -> Iterator[tuple[Step, list[RankBatch]]]:
        ahead = None
        for step in todo:
            following = step, self._thread.submit(self.turns, step.micros)
            if ahead is not None:
                yield ahead[0], ahead[1].result()
            ahead = following
        if ahead is not None:
            yield ahead[0], ahead[1].result()

    def turns(self, micros: tuple[MicroBatch, ...]) -> list[RankBatch]:
        """This rank's share of a step; all ranks get the same number of turns."""
        shortest = min(micros, key=lambda micro: (micro.tokens, micro.ids))
        filler = MicroBatch(shortest.ids[:1], 0, shortest.key, shortest.packed, window=shortest.window)
        rounds = range(self._rank, -(-len(micros) // self._size) * self._size, self._size)
        chosen = [(micros[number], True) if number < len(micros) else (filler, False) for number in rounds]
        if self._recipe.rollouts is None:
            turns = [RankBatch(micro, self.batch(micro), counts, self._mismatch(micro)) for micro, counts in chosen]
        else:
            earlier = [*count_earlier(micros)[self._rank :: self._size], (0,)]  # a filler has one row
            turns = []
            for (micro, counts), drawn in zip(chosen, earlier, strict=False):
                self._rows.announce(micro.ids)
                prompts = tuple(map(self.sample, micro.ids))
                turns.append(RankBatch(micro, Batch({}, {}), counts, prompts=prompts, earlier=drawn))
        return [turn.map(Tensor.pin_memory) for turn in turns] if self._pinned else turns

    def batch(self, micro: MicroBatch) -> Batch:
        self._rows.announce(micro.ids)
        samples = [self.sample(row) for row in micro.ids]
        if micro.window is not None and self._recipe.augment is not None:
            samples = [
                self._recipe.augment(sample, self._processor, torch.Generator().manual_seed(derive_key(micro.window, row)))
                for row, sample in zip(micro.ids, samples, strict=True)
            ]
        return self._add_predictions(self._collate(samples, micro.packed), micro.ids, lambda found: found.own)

    def _collate(self, samples: list[Sample], packed: bool) -> Batch:
        return lay_samples(self._recipe, samples, packed, self._fixed)

    def _add_predictions(self, batch: Batch, rows: Iterable[int], choose: Callable[[RowPredictions], Tensor]) -> Batch:
        """The batch of these rows with what the base predicts for them, if that was computed before."""
        known = [(row, choose(each)) for row in rows if (each := self._predict(row)) is not None]
        if not known:
            return batch
        reference = self._recipe.reference
        assert reference is not None and reference.cache is not None  # finetune/training/reference_cache.py has computed them
        for (row, values), needed in zip(known, reference.cache.count(batch), strict=True):
            if len(values) != needed:  # a single one would be broadcast in silence
                path = self._rows.cache_of(row).with_suffix(cached_samples.REFERENCE)
                found = f"its cached reference has {format_count(len(values), 'prediction')}, and its answers need {needed:,}"
                raise UserError(f"{self._rows.where(row)}: {found}; {suggest_rebuild(path)}")
        return replace(batch, tensors={**batch.tensors, REFERENCE: torch.cat([values for _, values in known])})

    def _predict(self, row: int) -> RowPredictions | None:
        try:
            return self._rows.predict(row)
        except UserError as error:
            raise UserError(f"{self._rows.where(row)}: {error}") from None

    def _mismatch(self, micro: MicroBatch) -> tuple[Batch, ...]:
        """The prompts of a micro-batch with answers of other rows, if the recipe needs such batches."""
        reference = self._recipe.reference
        if reference is None or reference.divergence is None:
            return ()
        groups: list[list[tuple[int, Sample]]] = [[]]
        for row in micro.ids:
            sample = self._find_mismatch(row, reference.divergence.mismatch)
            lengths = [self._recipe.length(each) for each in (*(other for _, other in groups[-1]), sample)]
            size = sum(lengths) if micro.packed else max(lengths) * len(lengths)
            if self._largest is not None and size > self._largest and groups[-1]:
                groups.append([])
            groups[-1].append((row, sample))
        return tuple(
            self._add_predictions(
                self._collate([sample for _, sample in group], micro.packed), [row for row, _ in group], lambda found: found.mismatched
            )
            for group in groups
        )

    def _find_mismatch(self, row: int, mismatch: Callable[[Sample, Sample, int], Sample | None]) -> Sample:
        """The prompt of a row with another row's answer. It depends on the file of the row alone, so that it is the same in training, in an
        evaluation and in a cached reference, whatever other files they have."""
        own, passed, longest = self.sample(row), [row], self._rows.longest_beside(row)
        other = self._other_prompts.get(row, self._rows.previous(row))
        while other != row:
            if (found := mismatch(own, self.sample(other), longest)) is not None:
                if len(passed) > 1:  # all of them have the same prompt: without this, each would be compared with all before it
                    self._other_prompts |= dict.fromkeys(passed, other)
                return found
            passed.append(other)
            other = self._other_prompts.get(other, self._rows.previous(other))
        raise UserError(
            f"{self._rows.where(row)}: all rows of its file have the same prompt, and the loss needs answers to other prompts; add some"
        )

    def check_prompts(self) -> None:
        """Raises `UserError` for a file whose rows all have the same prompt. Requires a recipe with a `Divergence`."""
        reference = self._recipe.reference
        assert reference is not None and reference.divergence is not None
        for first in self._rows.lengths.starts if isinstance(self._rows, MixedRows) else (0,):
            self._find_mismatch(first, reference.divergence.mismatch)

    def sample(self, row: int) -> Sample:
        """As `read_sample`."""
        return read_sample(self._rows, self._recipe, row)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)  # an error must be reported now, not after a slow read
