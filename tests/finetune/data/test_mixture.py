"""A mixture has the exact shares in every window, trains every row of a source equally often, and is the same on any number of ranks."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config
from overtone.finetune.data import batching
from overtone.finetune.data.batching import Order, Place
from overtone.finetune.data.mixture import (
    MixedLengths,
    MixedRows,
    compute_shares,
    describe_changes,
    describe_share,
    name_sources,
    name_validation_sources,
)
from overtone.finetune.distributed import process_group
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.training import setup
from overtone.finetune.training.step import report_sources, train_step
from tests.finetune import fork_server, tiny
from tests.finetune.data.test_batching import orders
from tests.finetune.plain import plain_loss, reference
from tests.finetune.training.test_loop import fitted
from tests.finetune.training.test_step import first_step
from tests.reliability import victims
from tests.reliability.victims import Fault

weights_of_sources = st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.5, 7.0, 1e-3]), min_size=1, max_size=4)


def make_lengths(weights: list[float], rows: list[int], seed: int = 0) -> MixedLengths:
    random = np.random.default_rng(seed)
    parts = tuple(random.integers(1, 100, count) for count in rows[: len(weights)])
    return MixedLengths(parts, compute_shares(weights), tuple(range(7, 7 + len(weights))))


def rows_of(micros: list[batching.MicroBatch]) -> list[int]:
    return [row for micro in micros for row in micro.ids]


# --- shares


def test_a_tenth_is_a_tenth() -> None:
    assert compute_shares([0.1, 0.9]) == (Fraction(1, 10), Fraction(9, 10)) and compute_shares([1, 2]) == compute_shares([0.5, 1.0])


@settings(max_examples=30, deadline=None)
@given(orders, weights_of_sources, st.lists(st.integers(1, 70), min_size=4, max_size=4))
def test_every_window_has_each_sources_share(order: Order, weights: list[float], rows: list[int]) -> None:
    lengths = make_lengths(weights, rows)
    windows, trained, seen = -(-len(lengths) // order.window), Counter[int](), 0
    for epoch in range(2):
        for window in range(windows):
            micros = batching.micro_batches(order, lengths, epoch, window)
            seen += min(order.window, len(lengths) - window * order.window)
            trained.update(rows_of(micros))
            for source, share in enumerate(lengths.shares):
                own = {row: trained[row] for row in range(lengths.starts[source], lengths.starts[source] + len(lengths.parts[source]))}
                assert abs(sum(own.values()) - share * seen) <= Fraction(1, 2), "a window has the exact share, rounded once in all"
                assert max(own.values()) - min(own.values()) <= 1, "every row of a source is trained equally often"
            for place, micro in enumerate(micros):
                assert {lengths.source_of(row) for row in micro.ids} == {micro.source}
                held = np.array([lengths[row] for row in micro.ids])
                assert micro.tokens == held.sum() and micro.key == batching.derive_key(order.seed, epoch, window, place)
                assert len(held) == 1 or (held.sum() if order.packing else len(held) * held.max()) <= order.micro_tokens


def test_weights_like_the_numbers_of_rows_train_each_row_once_an_epoch() -> None:
    lengths = make_lengths([30, 12, 5], [30, 12, 5])
    order = Order(3, 10, 200, 500)
    orders_of_epochs = []
    for epoch in range(3):
        rows = rows_of([micro for window in range(5) for micro in batching.micro_batches(order, lengths, epoch, window)])
        assert sorted(rows) == [*range(47)]
        orders_of_epochs.append(rows)
    assert len({tuple(rows) for rows in orders_of_epochs}) == 3
    passes = {tuple(lengths.draw(0, 47 * epoch, 47 * (epoch + 1), 3).tolist()) for epoch in range(3)}
    assert len(passes) == 3 and all(sorted(rows) == [*range(30)] for rows in passes), "each pass has another order"


def test_sources_are_spread_over_a_window() -> None:
    """A tenth of the micro-batches, and not all of them at one end: each run of twenty has two, give or take one."""
    ones = np.full(1000, 10)
    lengths = MixedLengths((ones, ones), compute_shares([0.9, 0.1]), (1, 2))
    sources = [micro.source for micro in batching.micro_batches(Order(0, 1000, 10, 100), lengths, 0, 0)]
    assert sources.count(1) == 100
    assert {sources[start : start + 20].count(1) for start in range(0, 1000, 20)} <= {1, 2, 3}
    phases = {
        [micro.source for micro in batching.micro_batches(Order(0, 10, 10, 100), lengths, 0, window)].index(1) for window in range(20)
    }
    assert len(phases) > 5, "a source with one micro-batch per window is not always at the same place of it"


@settings(max_examples=20, deadline=None)
@given(orders, weights_of_sources, st.lists(st.integers(1, 40), min_size=4, max_size=4), st.data())
def test_a_resumed_mixture_continues_with_the_same_steps(order: Order, weights: list[float], rows: list[int], data: Any) -> None:
    lengths = make_lengths(weights, rows)
    found = list(batching.steps(order, lengths, Place(), 2))
    assert batching.count_steps(order, lengths, 2) == len(found) > 0
    stop = data.draw(st.integers(0, len(found) - 1))
    assert list(batching.steps(order, lengths, found[stop].after, 2)) == found[stop + 1 :]
    assert list(islice(batching.steps(order, lengths, Place(), None), len(found))) == found


def test_the_order_of_a_mixture_is_pinned() -> None:
    """A changed order would silently repeat and skip rows in every run that resumes from an older checkpoint."""
    lengths = MixedLengths((np.array([3, 1, 2]), np.array([5, 4, 6, 7])), compute_shares([0.5, 0.5]), (11, 12))
    micros = batching.micro_batches(Order(0, 7, 12, 1), lengths, 0, 0)
    assert [(micro.ids, micro.source) for micro in micros] == [((1, 1, 2, 0), 0), ((6,), 1), ((4, 3), 1), ((5,), 1)]


# --- files


def test_files_are_named_after_their_stem_or_as_many_folders_as_needed() -> None:
    assert name_sources([Path("a/train.jsonl"), Path("replay.jsonl")]) == ("train", "replay")
    assert name_sources([Path("/x/a/train.jsonl"), "s3://bucket/b/train.jsonl"]) == ("a/train", "b/train")
    for twice in ([Path("a.jsonl"), Path("a.jsonl")], [Path("a.jsonl"), Path("a.json")]):
        with pytest.raises(UserError, match=r"data\.mix: a\.jsonl is listed twice, or another file has its name"):
            name_sources(twice)


def test_a_share_is_described_with_its_passes() -> None:
    assert describe_share("replay", Fraction(1, 4), 10, 33.4, 80, 3) == (
        "replay: 0.25 of the samples (10 rows of 33 positions on average; 2 passes in an epoch, 6 in all 3 epochs)"
    )
    assert describe_share("a", Fraction(1), 80, 5, 80, None, "frames").endswith("(80 rows of 5 frames on average; 1 passes in an epoch)")


MIX = ("own", 30, 0), ("replay", 11, 1)


def write_mixture(folder: Path) -> dict[str, list[str]]:
    """Two files with rows of different lengths; returns the texts of each."""
    texts = {"own": tiny.texts(30, 3, 20, seed=1), "replay": tiny.texts(11, 20, 60, seed=2)}
    for name, rows in texts.items():
        tiny.write_rows(folder / f"{name}.jsonl", rows)
    return texts


def mixed_config(folder: Path, *overrides: tuple[str, str]) -> Config:
    mix = f"[{{path: {folder / 'own.jsonl'}, weight: 0.7}}, {{path: {folder / 'replay.jsonl'}, weight: 0.3}}]"
    return tiny.config_in(folder, ("data.train", "null"), ("data.mix", mix), ("data.window", "16"), *overrides)


def test_each_sources_loss_is_that_of_its_own_rows(tmp_path: Path, world: World) -> None:
    written = write_mixture(tmp_path)
    training, _ = tiny.built(world, mixed_config(tmp_path, ("options.dropout", "0"), ("train.global_batch_tokens", "600")))
    assert isinstance(training.rows, MixedRows) and len(training.rows) == 41
    turns, texts = first_step(training)
    model = reference(training)
    numbers = train_step(training, turns, 0)
    for name in written:
        own = [text for text in texts if text in written[name]]
        assert own and numbers[f"mix/{name}/loss"] == pytest.approx(float(plain_loss(model, own).detach()), rel=1e-6)
        first = training.rows.lengths.starts[training.rows.names.index(name)]
        assert training.rows.where(first) == f"{tmp_path / name}.jsonl:1"
        fitting, own = training.rows.list_not_longer(first + 1), training.rows.lengths
        of_file = range(first, first + len(written[name]))
        assert fitting.tolist() == [row for row in of_file if own[row] <= own[first + 1]] and first + 1 in fitting
        assert training.rows.previous(first) == first + len(written[name]) - 1 and training.rows.previous(first + 1) == first
    assert numbers["loss"] == pytest.approx(float(plain_loss(model, texts).detach()), rel=1e-6)
    one = next(turn for turn in turns if turn.counts)
    numbers = train_step(training, [one], 0)
    assert one.micro.source is not None
    sources = {key.split("/")[1] for key in numbers if key.startswith("mix/")}
    assert sources == {training.rows.names[one.micro.source]}, "a source without targets in this step has no numbers"


def test_a_term_without_targets_of_a_source_has_no_mean(tmp_path: Path, world: World) -> None:
    """A mean of nothing would be logged as 0, which looks like a perfect prediction."""
    write_mixture(tmp_path)
    training, _ = tiny.built(world, mixed_config(tmp_path))

    def derive(means: dict[str, float]) -> dict[str, float]:
        return {**means, "perplexity": math.exp(min(means["after_next"], 700.0))}

    training = replace(training, recipe=replace(training.recipe, report=derive))
    sums = {"mix/own/next": 6.0, "mix/own/after_next": 0.0, "mix/replay/next": 2.0, "mix/replay/after_next": 4.0}
    counts = {"mix/own/next": 3.0, "mix/own/after_next": 0.0, "mix/replay/next": 2.0, "mix/replay/after_next": 4.0}
    found = report_sources(training, sums, counts, {"next": 1.0, "after_next": 0.3})
    assert {name for name in found if name.startswith("mix/own/")} == {"mix/own/loss", "mix/own/next"}
    assert (found["mix/own/loss"], found["mix/own/next"]) == (2.0, 2.0)
    assert (found["mix/replay/after_next"], found["mix/replay/perplexity"]) == (1.0, math.e)


def test_another_mix_is_refused_and_a_moved_file_is_not(tmp_path: Path, world: World) -> None:
    write_mixture(tmp_path)
    tiny.trained(world, mixed_config(tmp_path, ("train.steps", "2")))
    replay, own = tmp_path / "moved" / "other.jsonl", tmp_path / "own.jsonl"
    replay.parent.mkdir()
    replay.write_bytes((tmp_path / "replay.jsonl").read_bytes())
    equal = f"[{{path: {replay}, weight: 3}}, {{path: {own}, weight: 7}}]"
    _, progress = tiny.built(world, mixed_config(tmp_path, ("data.mix", equal), ("train.steps", "4")))
    assert progress.step == 2, "another order, other paths, and weights with the same shares"
    for mix, problem in (
        (f"[{{path: {own}, weight: 8}}, {{path: {replay}, weight: 2}}]", r"own had the share 7/10, now 4/5; replay|other had the share"),
        (f"[{{path: {own}, weight: 7}}]", r"data\.mix: own had the share 7/10, now 1; replay was removed or changed"),
    ):
        with pytest.raises(UserError, match=problem):
            tiny.built(world, mixed_config(tmp_path, ("data.mix", mix), ("train.steps", "4")))
    with pytest.raises(UserError, match=r"data was the mixture of (own|replay) .*, now one file"):
        tiny.built(world, mixed_config(tmp_path, ("data.mix", "[]"), ("data.train", str(own)), ("train.steps", "4")))


def test_changed_rows_of_a_source_are_named() -> None:
    was = [{"name": "a", "share": "1", "digest": "x", "rows": 3, "positions": 50}]
    assert (
        describe_changes(was, [{**was[0], "rows": 2}]) == ["a had 3 rows of 50 positions, now 2 of 50"] and describe_changes(was, was) == []
    )


def test_the_same_file_twice_is_refused(tmp_path: Path, world: World) -> None:
    write_mixture(tmp_path)
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "own.jsonl").read_bytes())
    mix = f"[{{path: {tmp_path / 'own.jsonl'}}}, {{path: {tmp_path / 'copy.jsonl'}}}]"
    with pytest.raises(UserError, match=r"(own|copy)\.jsonl have the same content; list it once"):
        tiny.built(world, mixed_config(tmp_path, ("data.mix", mix)))


# --- ranks


def train_mixture(folder: Path, run: str) -> list[dict[str, float]]:
    """On each rank: the numbers of each step."""
    world = process_group.join((), folder / run)
    config = mixed_config(folder, ("run.dir", str(folder / run)), ("train.steps", "6"), ("parallel.strategy", "fsdp"))
    tiny.trained(world, config)
    process_group.leave()
    return [event for event in read_log(folder / run / "log.jsonl") if event["event"] == "step"]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, float]]]:
    folder = tmp_path_factory.mktemp("mixture")
    write_mixture(folder)
    mixed_config(folder)
    return {size: fork_server.run_ranks(size, train_mixture, folder, f"run-{size}")[0] for size in (1, 2, 4)}


@pytest.mark.parametrize("size", [2, 4])
def test_several_ranks_log_the_same_numbers_as_one(series: dict[int, list[dict[str, float]]], size: int) -> None:
    assert len(series[1]) == 6 and all(key in {*series[1][0], *series[1][1]} for key in ("mix/own/loss", "mix/replay/after_next"))
    for one, other in zip(series[1], series[size], strict=True):
        names = [name for name in one if name in ("loss", "grad_norm", "tokens") or name.startswith("mix/")]
        assert {name for name in other if name.startswith("mix/")} == {name for name in names if name.startswith("mix/")}
        assert {name: other[name] for name in names} == pytest.approx({name: one[name] for name in names}, rel=1e-5)


def test_a_killed_mixture_resumes_on_the_same_rows(tmp_path: Path) -> None:
    write_mixture(tmp_path)
    mix = f"[{{path: {tmp_path / 'own.jsonl'}, weight: 0.7}}, {{path: {tmp_path / 'replay.jsonl'}, weight: 0.3}}]"
    own = ("--data.train", "null", "--data.mix", mix, "--data.window", 16, "--train.steps", 8, "--checkpoint.every", 2)
    arguments = {
        run: victims.arguments(tmp_path, *own, "--options.dropout", 0.2, "--run.dir", tmp_path / run) for run in ("whole", "killed")
    }
    victims.finish(tmp_path / "witness-whole", 1, arguments["whole"])
    ranks = victims.start(tmp_path / "witness", 1, arguments["killed"], Fault(0, 40))
    ranks[0].join(60)
    victims.kill(ranks)
    steps = [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(tmp_path / "killed" / "checkpoints")]
    assert steps and max(steps) < 8, "it was killed between its first checkpoint and its end"
    victims.finish(tmp_path / "witness", 1, arguments["killed"])
    assert victims.rows(tmp_path / "witness") == victims.rows(tmp_path / "witness-whole")
    assert victims.losses(tmp_path / "killed") == victims.losses(tmp_path / "whole") and len(victims.losses(tmp_path / "whole")) == 8
    assert victims.weights(tmp_path / "killed") == victims.weights(tmp_path / "whole")


def test_a_packed_mixture_resumes_with_the_same_numbers(tmp_path: Path, world: World) -> None:
    write_mixture(tmp_path)
    packing = replace(tiny.RECIPE, pack=tiny.RECIPE.collate)  # how samples are laid in a batch does not matter here
    found: dict[str, list[dict[str, float]]] = {}
    for name, launches in (("whole", ["6"]), ("stopped", ["3", "6"])):
        for steps in launches:
            chosen = (("data.packing", "true"), ("train.schedule", "constant"), ("train.steps", steps), ("run.dir", str(tmp_path / name)))
            config = mixed_config(tmp_path, *chosen)
            tiny.let_go(config.run.dir)
            fitted(*setup.build(config, packing, world), world)
        found[name] = [event for event in read_log(tmp_path / name / "log.jsonl") if event["event"] == "step"]
    assert len(found["whole"]) == 6 and any(key.startswith("mix/replay/") for event in found["whole"] for key in event)
    timed = ("time", "tokens_per_second", "memory_gib")
    for one, other in zip(found["whole"], found["stopped"], strict=True):
        assert {key: one[key] for key in one if key not in timed} == {key: other[key] for key in other if key not in timed}


def test_the_loader_reads_samples_of_every_source(tmp_path: Path, world: World) -> None:
    written = write_mixture(tmp_path)
    training, _ = tiny.built(world, mixed_config(tmp_path))
    loader = batching.Loader(training.rows, tiny.RECIPE, 0, 1)
    found = [bytes(loader.sample(row)["ids"].tolist()).decode() for row in range(len(training.rows))]
    assert sorted(found) == sorted([*written["own"], *written["replay"]])
    broken = replace(training.rows.sources[0], samples=training.rows.sources[1].samples)
    mixed = MixedRows((broken, training.rows.sources[1]), training.rows.names, training.rows.shares)
    with pytest.raises(UserError, match=r"\.jsonl:1: its cached sample"):
        batching.Loader(mixed, tiny.RECIPE, 0, 1).sample(0)
    loader.close()


def test_validation_files_are_named_and_sample_is_taken() -> None:
    assert name_validation_sources([Path("me/val.jsonl"), Path("replay/val.jsonl")]) == ("me/val", "replay/val")
    with pytest.raises(UserError, match="data.val: data/sample.jsonl: the name sample is that of the metrics of samples"):
        name_validation_sources([Path("data/sample.jsonl"), Path("data/val.jsonl")])
    with pytest.raises(UserError, match="data.val: a.jsonl is listed twice"):
        name_validation_sources(["a.jsonl", "a.jsonl"])
