"""A number that is not one, in a loss, a gradient or a weight, on either of two ranks: no update, no commit, or a skip that is counted."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.monitoring.run_records import read_log
from tests import loopback
from tests.finetune import tiny
from tests.ledger import record
from tests.reliability import poisoning, victims

pytestmark = [pytest.mark.slow, pytest.mark.ci]

PROMISE = "NaN or infinity in a loss, a gradient or a weight of one of 2 ranks: no rank updates, no checkpoint holds it"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("poisoned")
    tiny.config_in(made)
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each rank saw of all runs, from one start."""
    port = loopback.free_port()
    ranks = [victims.begin(poisoning.train_all, rank, 2, port, folder) for rank in range(2)]
    assert victims.wait(ranks, 250) == [0, 0], victims.said(folder)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


def word(run: Path) -> dict[str, Any]:
    return json.loads((run / "exit.json").read_text())


def tensors(run: Path) -> dict[str, torch.Tensor]:
    with checkpoint.rank_shards.open_shards(checkpoint.find(run)) as (read, shapes):
        return {name: read(name, None) for name in shapes}


def assert_committed_before(run: Path, step: int) -> None:
    assert [path.name for path in checkpoint.list_checkpoints(run / "checkpoints")] == [
        f"step-{number:08d}" for number in range(step, 0, -1)
    ]
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        with checkpoint.rank_shards.open_shards(path) as (read, shapes):
            assert all(torch.isfinite(read(name, None)).all() for name in shapes)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_bad_loss_or_gradient_changes_nothing_and_names_all_rows(found: list[dict[str, Any]], folder: Path, kind: str) -> None:
    for what in ("loss", "gradient"):
        name = f"{kind}-{what}"
        (message, untouched), other = (seen[name] for seen in found)
        assert other == [message, untouched] and untouched == [True], "both ranks decide alike, and neither applies the update"
        lines = {int(part.rsplit(":", 1)[1]) for part in message.split("Its rows: ")[1].split(". Check")[0].split(", ")}
        assert len(lines) >= 4 and message.startswith("step 4: loss ") and lines <= set(range(1, 21))
        assert word(folder / name)["reason"] == "not finite" and word(folder / name)["message"] == message
        assert_committed_before(folder / name, 3)
        record(PROMISE, 1)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_bad_weights_are_not_committed(found: list[dict[str, Any]], folder: Path, kind: str) -> None:
    name = f"{kind}-weights"
    messages = [seen[name][0] for seen in found]
    assert messages[0] == messages[1] and "step " in messages[0] and word(folder / name)["reason"] == "not finite"
    assert_committed_before(folder / name, 3)
    record(PROMISE, 1)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_budget_skips_counts_and_resumes_exactly(found: list[dict[str, Any]], folder: Path, kind: str) -> None:
    whole, resumed = folder / f"{kind}-whole", folder / f"{kind}-resumed"
    for seen in found:
        assert seen[whole.name] == ["finished", [True, True]]
        assert seen[resumed.name] == ["stopped by SIGTERM on rank 1", "finished", []]
    for run in (whole, resumed):
        events = read_log(run / "log.jsonl")
        assert [(event["step"], event["skipped"]) for event in events if event["event"] == "skipped"] == [(1, 1), (4, 2)]
        assert [event["step"] for event in events if event["event"] == "step"] == [2, 3, 5, 6]
        state = checkpoint.read_state(checkpoint.find(run))
        assert (state["step"], state["optimizer_steps"], state["skipped"]) == (6, 4, 2)
    losses = [
        [(event["step"], event["loss"], event["lr"]) for event in read_log(run / "log.jsonl") if event["event"] == "step"]
        for run in (whole, resumed)
    ]
    assert losses[0] == losses[1] and all(math.isfinite(loss) for _, loss, _ in losses[0])
    ended, ended_too = tensors(whole), tensors(resumed)
    assert ended.keys() == ended_too.keys() and all(torch.equal(ended[name], ended_too[name]) for name in ended)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_spent_budget_stops_the_run(found: list[dict[str, Any]], folder: Path, kind: str) -> None:
    run = folder / f"{kind}-exhausted"
    assert all(seen[run.name][0].startswith("step 4: loss ") and seen[run.name][1] == [True, True] for seen in found)
    assert_committed_before(run, 3)
    assert checkpoint.read_state(checkpoint.find(run))["optimizer_steps"] == 2


def test_a_spike_is_handled_like_a_nan(found: list[dict[str, Any]], folder: Path) -> None:
    for what, usual in (("loss", r"loss [\d.e+]+"), ("gradient", r"gradient norm [\d.e+]+")):
        run = folder / f"spike-{what}"
        (message, untouched), other = (seen[run.name] for seen in found)
        assert other == [message, untouched] and untouched == [True], "both ranks decide alike, and neither applies the update"
        expected = (
            rf"step 12: {usual} is more than train\.spike: 5 times the median [\d.]+ of the last 11 updates; the update was not applied"
        )
        assert re.match(expected, message) and message.count("train.jsonl:") >= 4
        assert word(run)["reason"] == "spike" and word(run)["message"] == message
        assert_committed_before(run, 11)
        record(PROMISE, 1)


def test_the_window_of_the_spike_check_is_restored_on_resume(found: list[dict[str, Any]], folder: Path) -> None:
    """A run that is resumed after its twelfth step has too few steps of its own to know a spike at the fourteenth."""
    whole, resumed = folder / "spike-whole", folder / "spike-resumed"
    for seen in found:
        assert seen[whole.name] == ["finished", [True, True]]
        assert seen[resumed.name] == ["stopped by SIGTERM on rank 1", "finished", [True]]
    for run in (whole, resumed):
        assert [event["step"] for event in read_log(run / "log.jsonl") if event["event"] == "skipped"] == [12, 14]
        assert len(checkpoint.read_state(checkpoint.find(run))["recent"]) == 12
    ended, ended_too = tensors(whole), tensors(resumed)
    assert ended.keys() == ended_too.keys() and all(torch.equal(ended[name], ended_too[name]) for name in ended)
    record(PROMISE, 2)
