"""The last record of a rank explains its end, to other ranks or to the next launch."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

from overtone.finetune.monitoring import killed_rank_diagnosis, rank_status_records
from tests.finetune.monitoring.test_rank_status_records import signs

FAR = {"host": "another", "boot": "another"}


@pytest.mark.parametrize(
    ("changes", "kills", "words"),
    [
        ({}, 4, "likely out of memory, unless somebody sent the signal; its peak of host memory was 3.2 GiB of 4.0 GiB when"),
        ({}, 5, f"out of memory: the kernel's out-of-memory killer has ended a process on {platform.node()} since the run began; its peak"),
        ({}, None, "likely out of memory, unless"),
        (
            {"boot": "another"},
            5,
            f"likely out of memory, unless {platform.node()} was started again since, is another machine, or somebody sent the signal; "
            "its peak of host memory was 3.2 GiB of 4.0 GiB when",
        ),
        (FAR, 5, "likely out of memory, unless somebody sent the signal; its peak of host memory was 3.2 GiB of 4.0 GiB when"),
        ({"gpu_peak_gib": 70.5}, 4, "likely out of memory"),
    ],
)
def test_the_likely_cause_of_a_kill_is_described(
    changes: dict[str, object], kills: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killed_rank_diagnosis, "out_of_memory_kills", lambda: kills)
    cause = killed_rank_diagnosis.explain_kill(signs(**changes))
    assert cause.startswith(words) and ("of GPU memory 70.5 GiB" in cause) == ("gpu_peak_gib" in changes)


def test_a_launch_without_an_exit_record_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killed_rank_diagnosis, "out_of_memory_kills", lambda: 4)  # the machine's own count may be higher
    assert killed_rank_diagnosis.describe_killed_launch(tmp_path) is None
    made = signs(time=1.7e9)
    rank_status_records.write_status(tmp_path, made)
    alone = killed_rank_diagnosis.describe_killed_launch(tmp_path)
    assert alone is not None
    assert alone.startswith(f"the last launch in {tmp_path} left no exit.json: its process ended without a message (killed, crashed, ")
    assert "closed) after at least step 12; rank 0 on " in alone and " if it was killed: likely out of memory" in alone
    assert alone.endswith(f" when last recorded, {time.strftime('%F %T', time.localtime(made.time))}")
    rank_status_records.write_status(tmp_path, signs(rank=1, ranks=2, step=13, peak_gib=9.0))
    both = killed_rank_diagnosis.describe_killed_launch(tmp_path)
    assert (
        both is not None
        and "all of its 2 processes ended without a message" in both
        and "at least step 13; rank 1 on " in both
        and "9.0 GiB" in both
    )
