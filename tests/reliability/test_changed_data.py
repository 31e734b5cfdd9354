"""Data or cached samples that change under a run of two ranks: no row is trained on that was not indexed, and the run names its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ledger import record
from tests.reliability import victims
from tests.reliability.afflictions import Affliction, befallen, begin

pytestmark = [pytest.mark.slow, pytest.mark.ci]

STEPS = 12
REFUSALS = {
    "rewrite data": "train.jsonl again: its content has changed",
    "replace data": "train.jsonl again: its content has changed",
    "truncate data": "1 invalid row:",
}
"""What the next start says."""
NAMES = (*REFUSALS, "damage samples", "truncate samples")
PROMISE = "data.train or its cached samples changed during a run of 2 ranks: no rank trains on a row that was not indexed"


def arguments(folder: Path) -> list[str]:
    steps = ["--train.steps", STEPS, "--checkpoint.every", 3, "--log.trackers", "[]", "--train.global_batch_tokens", 60]
    return victims.arguments(folder, "--run.dir", folder / "run", *steps)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[int | None]]]:
    """Folder and exit codes of one run for each kind of change, which rank 1 makes before its sixth step."""
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "-")) for name in NAMES}
    argvs = {name: arguments(folder) for name, folder in folders.items()}
    runs = {name: begin(folder / "witness", argvs[name], Affliction(1, "step", 5, name)) for name, folder in folders.items()}
    return {name: (folders[name], victims.wait(ranks)) for name, ranks in runs.items()}


def word(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "exit.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("damage samples", r"train\.jsonl:\d+: its cached sample was changed after it was written"),
        ("truncate samples", r"\.samples was truncated after it was written"),
    ],
)
def test_a_changed_cache_ends_all_ranks_and_the_next_start_rebuilds_it(name: str, reason: str, ended: dict[str, Any]) -> None:
    folder, codes = ended[name]
    printed = victims.said(folder / "witness")
    assert befallen(folder / "witness") == ["1-step"]
    assert set(codes) <= {1, 2} and "Traceback" not in printed, printed
    assert re.search(rf"error: .*{reason}.*delete .*samples and run the same command", printed), printed
    assert word(folder)["reason"] == "failed" and re.search(rf"^rank \d failed: .*{reason}", word(folder)["message"]), word(folder)
    victims.finish(folder / "witness", 2, arguments(folder))
    assert "are missing or damaged" in victims.said(folder / "witness")
    assert word(folder)["reason"] == "finished" and [step for step, _, _ in victims.losses(folder / "run")] == list(range(1, STEPS + 1))
    record(PROMISE, 1)


@pytest.mark.parametrize("name", REFUSALS)
def test_changed_data_does_not_affect_the_run_and_the_next_start_refuses_it(name: str, ended: dict[str, Any]) -> None:
    folder, codes = ended[name]
    printed = victims.said(folder / "witness")
    assert befallen(folder / "witness") == ["1-step"]
    assert codes == [0, 0] and word(folder)["reason"] == "finished", printed
    assert victims.losses(folder / "run") == victims.losses(ended["replace data"][0] / "run"), "on what was indexed"
    codes = victims.wait(victims.start(folder / "witness", 2, [*arguments(folder), "--train.steps", str(STEPS + 3)]))
    printed = victims.said(folder / "witness")
    assert codes == [2, 2] and REFUSALS[name] in printed, printed
    assert name == "truncate data" or "belongs to a run with other data" in printed, printed
    record(PROMISE, 1)
