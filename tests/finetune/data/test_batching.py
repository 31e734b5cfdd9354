"""The order of training: computed from the position alone, every row once an epoch, the same on any number of ranks."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.finetune.data import batching, sample_serialization
from overtone.finetune.data.batching import Loader, MicroBatch, Order, Place, Step
from overtone.finetune.data.cached_samples import RowPredictions, Rows, SamplesFile, compute_checksum, open_rows
from overtone.finetune.data.index_building import Measured, build_index
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import REFERENCE, Batch, Divergence, PredictionCache, Reference, Sample
from tests.finetune import tiny

orders = st.builds(
    Order,
    seed=st.integers(0, 2**40),
    window=st.integers(1, 40),
    micro_tokens=st.integers(1, 120),
    global_batch_tokens=st.integers(1, 400),
    packing=st.booleans(),
)
lengths_of_rows = st.lists(st.integers(1, 100), min_size=1, max_size=90).map(lambda values: np.array(values, dtype=np.int64))


def test_the_order_is_pinned() -> None:
    """A changed order would silently repeat and skip rows in every run that goes on from an older checkpoint."""
    assert batching.permute(np.arange(8), 8, batching.derive_key(0, 0)).tolist() == [5, 1, 7, 4, 2, 6, 3, 0]
    (micro,) = batching.micro_batches(Order(0, 8, 100, 1), np.ones(8, dtype=np.int64), 0, 0)
    assert list(micro.ids) == [5, 1, 7, 4, 2, 6, 3, 0] and micro.key == batching.derive_key(0, 0, 0, 0) == 6090696550242238203


# --- micro-batches and steps


@given(lengths_of_rows, st.integers(1, 300))
def test_fill_cuts_at_the_padded_size_and_no_earlier(lengths: np.ndarray, largest: int) -> None:
    lengths = np.sort(lengths)
    groups = batching.fill(np.arange(len(lengths)), lengths, largest)
    assert np.array_equal(np.concatenate(groups), np.arange(len(lengths)))
    for group, following in itertools.pairwise([*groups, None]):
        assert len(group) == 1 or len(group) * lengths[group].max() <= largest
        if following is not None:
            assert (len(group) + 1) * lengths[following[0]] > largest, "the next row would have fitted"


@settings(max_examples=150)
@given(orders, lengths_of_rows, st.integers(1, 3))
def test_steps_cover_every_row_once_an_epoch(order: Order, lengths: np.ndarray, epochs: int) -> None:
    found = list(batching.steps(order, lengths, Place(), epochs))
    assert batching.count_steps(order, lengths, epochs) == len(found)
    assert {step.after.epoch for step in found} <= set(range(epochs + 1))
    rows = Counter(row for step in found for micro in step.micros for row in micro.ids)
    assert rows == dict.fromkeys(range(len(lengths)), epochs)
    by_epoch: dict[int, list[int]] = {}
    for place, step in zip([Place(), *(step.after for step in found)], found, strict=False):
        by_epoch.setdefault(epoch_of(place, order, lengths), []).extend(row for micro in step.micros for row in micro.ids)
    assert all(sorted(rows) == list(range(len(lengths))) for rows in by_epoch.values()) and len(by_epoch) == epochs
    for step in found:
        assert step.tokens == sum(int(lengths[list(micro.ids)].sum()) for micro in step.micros)
        assert step.tokens - step.micros[-1].tokens < order.global_batch_tokens, "a step ends as soon as it is full"
        for micro in step.micros:
            held = lengths[list(micro.ids)]
            assert len(held) == 1 or (held.sum() if order.packing else len(held) * held.max()) <= order.micro_tokens
    keys = [micro.key for step in found for micro in step.micros]
    assert len(set(keys)) == len(keys), "no two micro-batches draw the same dropout"


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("micros", [1, 2, 4])
def test_a_step_holds_about_as_many_positions_as_were_set(micros: int, packing: bool) -> None:
    """Micro-batches are never quite full, so a step that must have all positions takes one too many: two instead of one."""
    lengths = np.random.default_rng(0).integers(10, 300, 4000)
    order = Order(0, 1024, 2048, micros * 2048, packing)
    found = [*batching.steps(order, lengths, Place(), 1)][:-1]
    assert all(abs(step.tokens - order.global_batch_tokens) <= 1024 for step in found)
    assert Counter(len(step.micros) for step in found).most_common(1)[0][0] == micros and order.step_tokens == order.global_batch_tokens
    assert len(found) == pytest.approx(lengths.sum() / order.global_batch_tokens, rel=0.12)


def test_a_step_of_windows_that_fill_no_micro_batch_holds_about_what_was_set() -> None:
    found = [*batching.steps(Order(0, 8, 10**6, 2000), np.full(800, 50), Place(), 1)]
    assert {step.tokens for step in found} == {2000}


@pytest.mark.parametrize("micro_tokens", [1, 2, 3, 8])
def test_the_size_of_a_step_counts_the_full_micro_batches_that_it_takes(micro_tokens: int) -> None:
    lengths = np.full(10 * micro_tokens, 1)
    for wanted in range(1, 5 * micro_tokens):
        order = Order(0, len(lengths), micro_tokens, wanted)
        assert next(batching.steps(order, lengths, Place(), 1)).tokens == order.step_tokens


def epoch_of(place: Place, order: Order, lengths: np.ndarray) -> int:
    """The epoch that the next step is of: a step may end exactly where its epoch does."""
    last = -(-len(lengths) // order.window) - 1
    at_end = place.window == last and place.micro == len(batching.micro_batches(order, lengths, place.epoch, last))
    return place.epoch + at_end


@settings(max_examples=100)
@given(orders, lengths_of_rows, st.data())
def test_resuming_from_any_step_continues_the_same_order(order: Order, lengths: np.ndarray, data: st.DataObject) -> None:
    found = list(batching.steps(order, lengths, Place(), 2))
    stop = data.draw(st.integers(0, len(found) - 1))
    assert list(batching.steps(order, lengths, found[stop].after, 2)) == found[stop + 1 :]
    endless = batching.steps(order, lengths, Place(), None)
    assert list(itertools.islice(endless, len(found))) == found and next(endless).after.epoch >= 2


@given(orders, st.lists(st.integers(1, 100), min_size=25, max_size=60).map(np.array))
def test_epochs_and_seeds_differ(order: Order, lengths: np.ndarray) -> None:
    first, second = (order_of(order, lengths, epoch) for epoch in (0, 1))
    assert first != second and sorted(first) == sorted(second)
    assert order_of(replace(order, seed=order.seed + 1), lengths, 0) != first


def order_of(order: Order, lengths: np.ndarray, epoch: int) -> list[int]:
    windows = range(-(-len(lengths) // order.window))
    return [row for window in windows for micro in batching.micro_batches(order, lengths, epoch, window) for row in micro.ids]


def turns_of(order: Order, lengths: np.ndarray, epoch: int, window: int) -> tuple[int, ...]:
    """For each turn of a window, which of its micro-batches it trains, counted from the shortest."""
    tokens = [micro.tokens for micro in batching.micro_batches(order, lengths, epoch, window)]
    assert len(set(tokens)) == len(tokens), "sizes that are equal would hide who takes which turn"
    return tuple(np.argsort(np.argsort(tokens)).tolist())


def test_the_order_of_micro_batches_differs_by_epoch_window_and_seed() -> None:
    """Rows of as many lengths as there are rows lie in the same micro-batches in every epoch: only their turns can differ."""
    lengths = np.arange(1, 41)
    order = Order(seed=0, window=40, micro_tokens=1, global_batch_tokens=1)  # a micro-batch for each row
    assert len({turns_of(order, lengths, epoch, 0) for epoch in range(20)}) == 20
    assert len({turns_of(replace(order, seed=seed), lengths, 0, 0) for seed in range(20)}) == 20
    windows = replace(order, window=20)
    assert len({turns_of(windows, np.arange(1, 401), 0, window) for window in range(20)}) == 20


def test_a_window_is_not_trained_from_short_to_long() -> None:
    lengths = np.arange(1, 1001)
    micros = batching.micro_batches(Order(0, 1000, 4000, 1), lengths, 0, 0)
    means = [micro.tokens / len(micro.ids) for micro in micros]
    assert len(means) > 50 and abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


# --- ranks


@settings(max_examples=60)
@given(orders, st.lists(st.integers(3, 30), min_size=1, max_size=30), st.integers(1, 4))
def test_ranks_share_each_step_exactly(order: Order, lengths: list[int], size: int) -> None:
    step = next(batching.steps(replace(order, packing=False), np.array(lengths), Place(), 1))
    rows = rows_in_memory(["x" * length for length in lengths])
    loaders = [Loader(rows, tiny.RECIPE, rank, size) for rank in range(size)]
    shares = [loader.turns(step.micros) for loader in loaders]
    for loader in loaders:
        loader.close()
    assert len({len(share) for share in shares}) == 1, "every rank takes part in every collective"
    in_turn = [turn for turns in zip(*shares, strict=True) for turn in turns]
    assert tuple(turn.micro for turn in in_turn if turn.counts) == step.micros
    fillers = [turn for turn in in_turn if not turn.counts]
    assert len(fillers) < size and all(turn.micro.tokens == 0 and len(turn.micro.ids) == 1 for turn in fillers)
    assert sum(turn.batch.targets["next"] for turn in in_turn if turn.counts) == step.tokens - sum(len(micro.ids) for micro in step.micros)


def rows_in_memory(texts: list[str]) -> Rows:
    lines = [json.dumps({"text": text}).encode() for text in texts]
    records = [sample_serialization.encode(tiny.RECIPE.read({"text": text}, None, Path())) for text in texts]
    numbers = zip(placed(lines), texts, range(len(texts)), placed(records), strict=True)
    index = np.array([[*row[:2], len(text), number + 1, row[2], *record] for row, text, number, record in numbers])
    with tempfile.NamedTemporaryFile() as cached:
        cached.write(b"".join(records))
        cached.flush()
        return Rows(Path("memory.jsonl"), index, "", SamplesFile(Path(cached.name)))


def placed(parts: list[bytes]) -> list[tuple[int, int, int]]:
    """(offset, bytes, checksum) of each of the parts, laid end to end."""
    starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
    return [(start, len(part), compute_checksum(part)) for start, part in zip(starts, parts, strict=True)]


def test_the_loader_reads_one_step_ahead_and_in_order() -> None:
    rows, read = rows_in_memory(tiny.texts(12)), []
    loader = Loader(rows, tiny.RECIPE, 0, 1)
    todo = [Step((MicroBatch((row,), 3, row),), Place(0, 0, row + 1)) for row in range(12)]

    def asked() -> Iterator[Step]:
        for step in todo:
            read.append(step)
            yield step

    seen = []
    for step, turns in loader.iterate(asked()):
        seen.append((step, turns[0].micro.ids[0]))
        assert len(read) <= len(seen) + 1, "a longer queue would hold batches in memory"
    loader.close()
    assert seen == [(step, number) for number, step in enumerate(todo)]
    assert list(loader_over_nothing(rows)) == []


def loader_over_nothing(rows: Rows) -> Iterator[object]:
    loader = Loader(rows, tiny.RECIPE, 0, 1)
    yield from loader.iterate(iter([]))
    loader.close()


def test_a_cached_sample_that_can_not_be_read_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "abcdef"}\n\n{"text": "ghi"}\n{"text": "jkl"}\n')
    records = {
        "abcdef": sample_serialization.encode({"ids": torch.arange(6)}),
        "ghi": b"[]\nno tensor",
        "jkl": b"[" * 200 + b"]" * 200 + b"\n",
    }
    build_index(path, tmp_path / "cache", "key", lambda row: Measured(len(row["text"]), sample=records[row["text"]]))
    loader = Loader(open_rows(path, tmp_path / "cache"), tiny.RECIPE, 0, 1)
    assert loader.sample(0)["ids"].tolist() == [*range(6)]
    for row, words in (
        (1, r"rows\.jsonl:3: its cached .*its tensors take 3 bytes, and it has 12"),
        (2, r"rows\.jsonl:4: .*nested.*delete .*samples"),
    ):
        with pytest.raises(UserError, match=words):
            list(loader.iterate(iter([Step((MicroBatch((row,), 1, 0),), Place())])))
    loader.close()


def test_the_order_of_a_config_holds_all_that_decides_it(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, ("run.seed", "3"), ("data.window", "5"))
    assert Order.of(config.run.seed, config.data, config.train).as_json() == {
        "seed": 3,
        "window": 5,
        "micro_tokens": 100,
        "global_batch_tokens": 300,
        "packing": False,
    }


# --- augmentation


def add_noise(sample: Sample, processor: Any, generator: torch.Generator) -> Sample:
    return {"ids": sample["ids"], "drawn": torch.rand(2, generator=generator) + processor}


def collate_noise(samples: list[Sample]) -> Batch:
    noise = torch.stack([sample.get("drawn", torch.zeros(2)) for sample in samples])
    return Batch({"drawn": noise}, {"next": len(samples), "after_next": len(samples)})


def draws(rows: Any, lengths: Any, size: int, epoch: int, **changes: Any) -> dict[tuple[int, int], list[float]]:
    """(row, how many times before in this epoch) → what was drawn for it, on `size` ranks."""
    order = replace(Order(3, 8, 60, 200), **changes)
    recipe = replace(tiny.RECIPE, augment=add_noise, collate=collate_noise)
    loaders = [Loader(rows, recipe, rank, size, processor=7.0) for rank in range(size)]
    found: dict[tuple[int, int], list[float]] = {}
    for step in batching.steps(order, lengths, Place(epoch), epoch + 1):
        for turn in (turn for loader in loaders for turn in loader.turns(step.micros) if turn.counts):
            for row, drawn in zip(turn.micro.ids, turn.batch.tensors["drawn"].tolist(), strict=True):
                found[row, sum(known == row for known, _ in found)] = drawn
    for loader in loaders:
        loader.close()
    return found


def test_a_row_is_augmented_by_seed_and_epoch_alone() -> None:
    rows = rows_in_memory(tiny.texts(30))
    alone = draws(rows, rows.lengths, 1, 0)
    assert len(alone) == 30 and len({*map(tuple, alone.values())}) == 30 and min(map(min, alone.values())) >= 7.0
    for size, changes in ((2, {}), (4, {}), (1, {"micro_tokens": 41, "global_batch_tokens": 90})):
        assert draws(rows, rows.lengths, size, 0, **changes) == alone
    for other in (draws(rows, rows.lengths, 1, 1), draws(rows, rows.lengths, 1, 0, seed=4)):
        assert other.keys() == alone.keys() and all(other[row] != alone[row] for row in alone)


def test_a_resumed_epoch_augments_as_the_whole_one_does() -> None:
    rows, order = rows_in_memory(tiny.texts(30)), Order(3, 8, 60, 200)
    recipe = replace(tiny.RECIPE, augment=add_noise, collate=collate_noise)
    loader = Loader(rows, recipe, 0, 1, processor=0.0)
    whole = [*batching.steps(order, rows.lengths, Place(), 1)]
    rest = [*batching.steps(order, rows.lengths, whole[1].after, 1)]
    before, after = ([loader.turns(step.micros)[0].batch.tensors["drawn"].tolist() for step in found] for found in (whole[2:], rest))
    loader.close()
    assert before == after and len(before) >= 2


def test_an_evaluation_does_not_augment() -> None:
    rows = rows_in_memory(tiny.texts(4))
    loader = Loader(rows, replace(tiny.RECIPE, augment=add_noise, collate=collate_noise), 0, 1, processor=0.0)
    assert loader.batch(MicroBatch((0, 1), 9, 5)).tensors["drawn"].tolist() == [[0.0, 0.0]] * 2
    assert loader.batch(MicroBatch((0, 1), 9, 5, window=1)).tensors["drawn"].min() > 0
    loader.close()


def test_rows_that_a_step_draws_again_are_counted_over_all_ranks() -> None:
    """Rollouts of the same row need other random numbers, on any number of ranks."""
    micros = tuple(MicroBatch(rows, 2, 0) for rows in ((3, 1), (3, 2), (3, 3), (1,)))
    recipe: Any = replace(tiny.RECIPE, rollouts=object())  # type: ignore[arg-type]
    expected = [(0, 0), (1, 0), (2, 3), (1,)]
    for size in (1, 2, 3):
        found = dict[int, tuple[int, ...]]()
        for rank in range(size):
            loader = Loader(rows_in_memory(["aaAA", "bbBB", "ccCC", "ddDD"]), recipe, rank, size)
            turns = loader.turns(micros)
            loader.close()
            found |= {rank + number * size: turn.earlier for number, turn in enumerate(turns) if turn.counts}
        assert [found[number] for number in range(4)] == expected


# --- answers of other rows


def join_texts(sample: Sample, other: Sample, positions: int) -> Sample | None:
    """The first half of a text with the second half of another, cut at so many letters; None if both begin with the same letter."""
    own, answer = (each["ids"].tolist() for each in (sample, other))
    return None if own[0] == answer[0] else {"ids": torch.tensor([*own[: len(own) // 2], *answer[len(answer) // 2 :]][:positions])}


def list_mismatched(
    rows: list[str] | MixedRows,
    *micros: MicroBatch,
    mismatch: Callable[[Sample, Sample, int], Sample | None] = join_texts,
    largest: int | None = None,
) -> list[list[str]]:
    """The texts of each batch."""
    divergence = Divergence(needed=lambda _: True, mismatch=mismatch)
    reference = Reference(predict=lambda _, batch: batch.tensors["ids"], needed=lambda _: True, divergence=divergence)

    def collate(samples: list[Sample]) -> Batch:
        return Batch({str(place): sample["ids"] for place, sample in enumerate(samples)}, {})

    recipe = replace(tiny.RECIPE, reference=reference, collate=collate, pack=collate)
    loader = Loader(rows_in_memory(rows) if isinstance(rows, list) else rows, recipe, 0, 1, largest=largest)
    try:
        turns = loader.turns(micros)
    finally:
        loader.close()
    return [[bytes(ids.tolist()).decode() for ids in batch.tensors.values()] for turn in turns for batch in turn.mismatched]


def test_a_row_gets_the_answer_of_the_nearest_row_before_it_with_another_prompt() -> None:
    texts = ["aaAA", "bbBB", "bbCC", "ddDD"]
    assert list_mismatched(texts, MicroBatch((0, 1, 2, 3), 8, 0)) == [["aaDD", "bbAA", "bbAA", "ddCC"]]
    assert list_mismatched(texts, MicroBatch((2,), 2, 0), MicroBatch((3, 0), 4, 0)) == [["bbAA"], ["ddCC", "aaDD"]]


def join_whole_texts(sample: Sample, other: Sample, positions: int) -> Sample:
    return {"ids": torch.cat([sample["ids"], other["ids"]])[:positions]}


def test_a_prompt_with_another_answer_is_no_longer_than_the_longest_row_of_its_file() -> None:
    found = list_mismatched(["aaaaaa", "bbb", "cccc"], MicroBatch((1,), 3, 0), MicroBatch((2,), 4, 0), mismatch=join_whole_texts)
    assert found == [["bbbaaa"], ["ccccbb"]], "also of a micro-batch without the longest row"
    files = tuple(
        replace(rows_in_memory(texts), digest=digest) for texts, digest in ((["aaaaaa", "bbb", "cccc"], "1"), (["d" * 9, "eee"], "2"))
    )
    mixed = MixedRows(files, ("short", "long"), (Fraction(1, 2),) * 2)
    found = list_mismatched(mixed, MicroBatch((1,), 3, 0), MicroBatch((2,), 4, 0), MicroBatch((4,), 3, 0), mismatch=join_whole_texts)
    assert found == [["bbbaaa"], ["ccccbb"], ["eeedddddd"]], "with other files, the answers are those of the file alone"


@pytest.mark.parametrize(("packed", "expected"), [(True, [3, 3]), (False, [1, 5])])
def test_batches_of_prompts_with_other_answers_have_at_most_so_many_positions(packed: bool, expected: list[int]) -> None:
    """The first row of the micro-batch gets ten letters of the long one before it; padding counts."""
    texts = ["a" * 20, *(letter * 2 + letter.upper() * 2 for letter in "bcdefg")]
    micro = MicroBatch((1, 2, 3, 4, 5, 6), 24, 0, packed)
    whole = [["bb" + "a" * 10, "ccBB", "ddCC", "eeDD", "ffEE", "ggFF"]]
    found = list_mismatched(texts, micro, largest=20)
    assert [len(batch) for batch in found] == expected and [[*itertools.chain(*found)]] == whole
    assert list_mismatched(texts, micro, largest=72) == list_mismatched(texts, micro) == whole
    assert list_mismatched(texts, micro, largest=1) == [[text] for text in whole[0]], "a longer one is alone"


def test_batches_have_the_predictions_of_their_rows() -> None:
    texts = ["a" * 20, *(letter * 2 + letter.upper() * 2 for letter in "bcdefg")]

    def predict(row: int) -> RowPredictions:
        if row == 5:
            raise UserError("it was changed")
        return RowPredictions(row, torch.tensor([row] if row == 4 else [row, row + 0.5]), torch.tensor([-1.0 * row, 0]))

    def collate(samples: list[Sample]) -> Batch:
        return Batch({"ids": torch.cat([sample["ids"] for sample in samples])}, {"samples": len(samples)})

    divergence = Divergence(needed=lambda _: True, mismatch=join_texts)
    cache = PredictionCache(needed=lambda _: True, count=lambda batch: [2] * batch.targets["samples"])
    reference = Reference(predict=lambda _, batch: batch.tensors["ids"], needed=lambda _: True, divergence=divergence, cache=cache)
    rows = replace(rows_in_memory(texts), predictions=predict)
    loader = Loader(rows, replace(tiny.RECIPE, reference=reference, collate=collate), 0, 1, largest=20)
    (turn,) = loader.turns((MicroBatch((3, 1, 2), 12, 0),))
    assert turn.batch.tensors[REFERENCE].tolist() == [3, 3.5, 1, 1.5, 2, 2.5]
    assert [batch.tensors[REFERENCE].tolist() for batch in turn.mismatched] == [[-3, 0], [-1, 0], [-2, 0]]
    with pytest.raises(
        UserError, match=r"memory\.jsonl:5: its cached reference has 1 prediction, and its answers need 2; delete .*\.reference"
    ):
        loader.batch(MicroBatch((3, 4), 8, 0))
    with pytest.raises(UserError, match=r"memory\.jsonl:6: it was changed"):
        loader.batch(MicroBatch((5,), 4, 0))
    loader.close()


def test_rows_of_one_prompt_are_walked_once() -> None:
    compared: list[None] = []

    def count(sample: Sample, other: Sample, positions: int) -> Sample | None:
        compared.append(None)
        return join_texts(sample, other, positions)

    texts = ["aaAA", *["bbBB"] * 200, "ccCC", "ddDD"]
    rows = tuple(range(len(texts)))
    expected = ["aaDD", *["bbAA"] * 200, "ccBB", "ddCC"]
    for order in (rows, rows[::-1]):
        compared.clear()
        assert list_mismatched(texts, MicroBatch(order, 4 * len(rows), 0), mismatch=count) == [[expected[row] for row in order]]
        assert len(compared) < 3 * len(texts)


def test_rows_that_all_have_the_same_prompt_are_refused() -> None:
    with pytest.raises(UserError, match="all rows of its file have the same prompt, and the loss needs answers to other prompts"):
        list_mismatched(["aaAA", "aaBB"], MicroBatch((0,), 2, 0))
