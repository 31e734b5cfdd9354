"""A run with more ranks than micro-batches gets advice, and the advised values work on the data they were computed for."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from overtone.finetune.data.batching import Order, Place, Step, steps
from overtone.finetune.data.cached_samples import Ids
from overtone.finetune.data.load_imbalance_estimate import idle_share, suggest_sizes

LENGTHS: Ids = np.random.default_rng(0).integers(60, 300, 4000).astype(np.int64)
VOICE = Order(seed=1, window=1024, micro_tokens=2048, global_batch_tokens=4096)


def first_steps(order: Order, lengths: Ids = LENGTHS) -> list[Step]:
    todo = steps(order, lengths, Place(), epochs=1)
    return [next(todo) for _ in range(20)]


def named(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"train\.(\w+): (\d+)", text)}


def test_there_is_no_advice_when_every_rank_has_a_micro_batch() -> None:
    assert suggest_sizes(VOICE, LENGTHS, 1) is None
    assert suggest_sizes(VOICE, LENGTHS, 2) is None


def test_the_advised_values_give_every_rank_a_micro_batch() -> None:
    assert idle_share(first_steps(VOICE), 8) > 0.6
    line = suggest_sizes(VOICE, LENGTHS, 8)
    assert line is not None and "2 micro-batches for 8 ranks" in line
    found = named(line)
    assert found.keys() == {"global_batch_tokens", "micro_tokens"}
    for key, value in found.items():
        better = first_steps(Order(**{**VOICE.as_json(), key: value}))
        assert idle_share(better, 8) < 0.25, key
    assert found["global_batch_tokens"] < 8 * 2048, "with that many, some steps have a ninth micro-batch, and as many turns again"


def test_ranks_times_micro_tokens_can_be_one_micro_batch_too_many() -> None:
    order = Order(seed=1, window=1024, micro_tokens=2048, global_batch_tokens=8 * 2048)
    lengths: Ids = np.random.default_rng(0).integers(60, 1000, 4000).astype(np.int64)  # little more than two rows fill a micro-batch
    assert min(len(step.micros) for step in first_steps(order, lengths)) == 9
    line = suggest_sizes(order, lengths, 8)
    assert line is not None
    better = replace(order, global_batch_tokens=named(line)["global_batch_tokens"])
    assert idle_share(first_steps(better, lengths), 8) < 0.25


def test_a_micro_batch_is_not_made_smaller_than_the_longest_sample() -> None:
    lengths = LENGTHS.copy()
    lengths[7] = 2000
    line = suggest_sizes(VOICE, lengths, 8)
    assert line is not None and named(line).keys() == {"global_batch_tokens"}
