"""Data that changes under a run of two ranks: no row is trained on that was not indexed, and the run says which one it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ledger import record
from tests.reliability import victims
from tests.reliability.afflictions import Affliction, befallen, begin

STEPS = 12
NAMES = ("rewrite data", "truncate data", "replace data")
PROMISE = "data.train rewritten, truncated or replaced during a run of 2 ranks: no rank trains on a row that was not indexed"


def arguments(folder: Path) -> list[str]:
    steps = ["--train.steps", STEPS, "--checkpoint.every", 3, "--log.trackers", "[]", "--train.global_batch_tokens", 60]
    return victims.arguments(folder, "--run.dir", folder / "run", *steps)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[int | None], bytes]]:
    """Folder, exit codes and the data as it was, of one run for each kind of change, which rank 1 makes before its sixth step."""
    folders = {name: tmp_path_factory.mktemp(name.partition(" ")[0]) for name in NAMES}
    argvs = {name: arguments(folder) for name, folder in folders.items()}
    data = {name: (folder / "train.jsonl").read_bytes() for name, folder in folders.items()}
    runs = {name: begin(folder / "witness", argvs[name], Affliction(1, "step", 5, name)) for name, folder in folders.items()}
    return {name: (folders[name], victims.wait(ranks), data[name]) for name, ranks in runs.items()}


def word(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "exit.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "reason"),
    [("rewrite data", "not the one that was indexed: the file was rewritten"), ("truncate data", "the file was truncated after it was")],
)
def test_a_change_in_place_ends_all_ranks_and_names_the_row(name: str, reason: str, ended: dict[str, Any]) -> None:
    folder, codes, data = ended[name]
    printed = victims.said(folder / "witness")
    assert befallen(folder / "witness") == ["1-step"]
    assert set(codes) <= {1, 2} and "Traceback" not in printed, printed
    assert re.search(rf"error: {re.escape(str(folder))}/train\.jsonl:\d+: .*{reason}.*Restore the file", printed), printed
    assert word(folder)["reason"] == "failed"
    assert re.search(rf"^rank \d failed: .*train\.jsonl:\d+: .*{reason}", word(folder)["message"]), word(folder)
    (folder / "train.jsonl").write_bytes(data)
    victims.finish(folder / "witness", 2, arguments(folder))
    assert word(folder)["reason"] == "finished" and [step for step, _, _ in victims.losses(folder / "run")] == list(range(1, STEPS + 1))
    record(PROMISE, 1)


def test_a_file_that_takes_its_place_is_not_seen_until_the_next_start_refuses_it(ended: dict[str, Any]) -> None:
    folder, codes, _ = ended["replace data"]
    printed = victims.said(folder / "witness")
    assert befallen(folder / "witness") == ["1-step"]
    assert codes == [0, 0] and word(folder)["reason"] == "finished", printed
    codes = victims.wait(victims.start(folder / "witness", 2, [*arguments(folder), "--train.steps", str(STEPS + 3)]))
    printed = victims.said(folder / "witness")
    assert codes == [2, 2] and "train.jsonl again: its content has changed" in printed, printed
    assert "belongs to a run with other data" in printed, printed
    record(PROMISE, 1)
