"""`auto` sizes: few data get many small steps, large data the largest step; a resumed run keeps its size; few updates are warned of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.finetune.config import Config
from overtone.finetune.data import batching, run_sizes
from overtone.finetune.data.batching import Order
from overtone.finetune.data.run_sizes import RunSizes, settle_sizes
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from tests.finetune import tiny

OPEN = {"train.steps": "null", "train.global_batch_tokens": "auto", "eval.every": "auto", "checkpoint.every": "auto"}


def config_of(folder: Path, **changes: Any) -> Config:
    given = {**OPEN, "train.micro_tokens": "4096", "train.largest_batch_tokens": "65536"}
    return tiny.config_in(folder, *{**given, **{key.replace("__", "."): str(value) for key, value in changes.items()}}.items())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A config with every size left to the data."""
    return config_of(tmp_path_factory.mktemp("sizes"))


def settle(config: Config, lengths: np.ndarray, started: Order | None = None) -> RunSizes:
    count = partial(batching.count_steps, lengths=lengths, epochs=config.train.epochs)
    return settle_sizes(config, len(lengths), int(lengths.sum()), "positions", count, started)


@pytest.mark.parametrize("packing", ["true", "false"])
@pytest.mark.parametrize(("rows", "longest"), [(150, 300), (300, 300), (300, 4000), (2_000, 1_000), (10_000, 400)])
def test_a_run_has_about_a_hundred_updates(tmp_path: Path, rows: int, longest: int, packing: str) -> None:
    """Also where a step has several micro-batches, which are never quite full, and where it is smaller than one."""
    found = settle(config_of(tmp_path, data__packing=packing), np.random.default_rng(0).integers(10, longest, rows))
    assert 85 <= found.total <= 145, found
    assert found.order.micro_tokens <= 4096


def test_large_data_get_the_largest_step_and_more_updates(base: Config) -> None:
    found = settle(base, np.full(100_000, 600))
    assert found.order.step_tokens == 65536 and found.order.micro_tokens == 4096
    assert found.total == pytest.approx(3 * 100_000 * 600 / 65536, rel=0.1)


def test_a_step_has_at_least_a_few_samples_and_few_updates_are_warned_of(base: Config) -> None:
    found = settle(base, np.full(40, 100))
    assert found.total == 30 == 3 * 40 // run_sizes.SMALLEST_STEP
    (warning,) = [line for line in found.remarks if line.startswith("warning")]
    assert "30 updates" in warning and "--train.epochs (now 3) to 5, or --train.lr (now 0.01)" in warning
    enough = base.model_copy(update={"train": base.train.model_copy(update={"epochs": 5})})
    assert not any(line.startswith("warning") for line in settle(enough, np.full(40, 100)).remarks)


def test_a_step_that_was_set_too_large_is_warned_of_with_the_key(base: Config) -> None:
    """The default of an earlier version: 300 chats were three steps."""
    fixed = base.model_copy(update={"train": base.train.model_copy(update={"global_batch_tokens": 65536})})
    found = settle(fixed, np.full(300, 150))
    assert found.total == 3 and found.order == Order.of(fixed.run.seed, fixed.data, fixed.train)
    (warning,) = [line for line in found.remarks if line.startswith("warning")]
    assert "3 updates" in warning and "--train.epochs (now 3) to 50, or --train.global_batch_tokens (now 65,536) to auto" in warning
    resumed = settle(base, np.full(300, 150), replace(found.order, global_batch_tokens=60_000))
    assert [line for line in resumed.remarks if "3 updates" in line and "to auto" not in line], "it is auto already"
    steps = base.model_copy(update={"train": base.train.model_copy(update={"steps": 3})})
    assert not any(line.startswith("warning") for line in settle(steps, np.full(300, 150)).remarks), "the number was set"


def test_a_step_that_was_set_smaller_than_a_micro_batch_is_warned_of(tmp_path: Path) -> None:
    """Its size is that of the micro-batch: eight times what was set."""
    lengths = np.full(4_000, 50)
    found = settle(config_of(tmp_path, train__global_batch_tokens=512), lengths)
    assert found.total == pytest.approx(3 * lengths.sum() / 4096, rel=0.1)
    (warning,) = [line for line in found.remarks if line.startswith("warning")]
    assert "of up to 4,096 positions, although train.global_batch_tokens is 512: for smaller steps set train.micro_tokens below" in warning
    as_warned = settle(config_of(tmp_path, train__global_batch_tokens=512, train__micro_tokens=256), lengths)
    assert as_warned.total > 4 * found.total
    assert not any(line.startswith("warning") for line in as_warned.remarks)
    little_less = settle(config_of(tmp_path, train__global_batch_tokens=4000), lengths)
    assert not any(line.startswith("warning") for line in little_less.remarks), "as the launch files advise"


@settings(max_examples=200)
@given(st.integers(1, 3000), st.booleans(), st.booleans())
def test_there_is_a_choice_of_evaluated_checkpoints(base: Config, total: int, adapters: bool, validated: bool) -> None:
    model = base.model.model_copy(update={"lora": object() if adapters else None})
    data = base.data.model_copy(update={"val": Path("val.jsonl") if validated else None})
    found = settle_sizes(base.model_copy(update={"model": model, "data": data}), 1, 1, "positions", lambda _: total).config
    evaluate, save = found.eval.every, found.checkpoint.every
    assert isinstance(evaluate, int) and isinstance(save, int) and 1 <= evaluate <= 200 and 1 <= save <= 200
    assert not validated or save % evaluate == 0, "each checkpoint is evaluated"
    assert total < 5 or total // save >= 3, "there are several to choose from"
    assert total // save <= 10 or save >= 101


def test_set_intervals_stay(tmp_path: Path) -> None:
    found = settle_sizes(config_of(tmp_path, eval__every=7, checkpoint__every=30), 1, 1, "positions", lambda _: 1000).config
    assert (found.eval.every, found.checkpoint.every) == (7, 30)
    found = settle_sizes(config_of(tmp_path, eval__every=7, data__val=tmp_path / "train.jsonl"), 1, 1, "positions", lambda _: 100).config
    assert found.checkpoint.every == 21, "a fifth of the run, at an evaluation"


def choose_new_order(config: Config, rows: int, positions: int) -> Order:
    """The order of a run that does not resume."""
    return run_sizes.choose_order(Order.of(config.run.seed, config.data, config.train), config.train, rows, positions)


def test_a_run_with_more_epochs_resumes_with_its_step_size(tmp_path: Path, world: World) -> None:
    """Otherwise `auto` would find another size, and the checkpoint would be of another run."""
    sizes = {"train__micro_tokens": 100, "train__largest_batch_tokens": 300}
    first, _ = tiny.trained(world, config_of(tmp_path, **sizes, train__epochs=3))
    positions = int(first.rows.lengths.sum())
    assert first.order == choose_new_order(first.config, 20, positions)
    longer = config_of(tmp_path, **sizes, train__epochs=30)
    again, progress = tiny.built(world, longer)
    assert progress.step == first.total and again.order == first.order and again.total > 8 * first.total
    assert choose_new_order(longer, 20, positions) != first.order
    assert any("as when the run started" in line for line in again.loaded.remarks)
    with pytest.raises(UserError, match="order was"):  # the micro-batches of the first launch have no room
        tiny.built(world, config_of(tmp_path, train__micro_tokens=50, train__largest_batch_tokens=300, train__epochs=30))
