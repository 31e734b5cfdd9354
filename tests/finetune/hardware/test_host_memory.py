"""What a process may use of its machine's memory: the limits of every control group around it hold, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from overtone.finetune.hardware import host_memory

LARGEST = 9223372036854771712
"""What version 1 writes for "no limit"."""


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(host_memory, "OWN_GROUPS", tmp_path / "own")
    return tmp_path


def write(group: Path, **content: object) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (group / name).write_text(f"{text}\n")


def assert_unlimited() -> None:
    assert host_memory.host_memory() == psutil.virtual_memory().total
    assert host_memory.free_host_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.5)


def test_this_machine() -> None:
    assert 0 < host_memory.free_host_memory() < host_memory.host_memory() <= psutil.virtual_memory().total
    kills = host_memory.out_of_memory_kills()
    assert kills is None or kills >= 0


def test_the_lowest_limit_around_a_process_holds(groups: Path) -> None:
    assert_unlimited()
    (groups / "own").write_text("0::/system.slice/job_7/step_0\n")
    step, job = groups / "system.slice/job_7/step_0", groups / "system.slice/job_7"
    write(step, **{"memory.max": "max", "memory.current": 600_000})
    assert_unlimited()
    write(job, **{"memory.max": 1_000_000, "memory.current": 700_000})
    assert (host_memory.host_memory(), host_memory.free_host_memory()) == (1_000_000, 300_000)
    write(job, **{"memory.stat": "anon 500000\ninactive_file 150000"})
    assert host_memory.free_host_memory() == 450_000, "what is only cached is given up for it"
    write(step, **{"memory.max": 800_000})
    assert (host_memory.host_memory(), host_memory.free_host_memory()) == (800_000, 200_000)
    write(job, **{"memory.current": 2_000_000})
    assert host_memory.free_host_memory() == 0


def test_version_1_and_a_container_whose_path_is_that_on_its_host(groups: Path) -> None:
    (groups / "own").write_text("5:cpu,cpuacct:/\n4:memory:/docker/0123abcd\n1:name=systemd:/docker/0123abcd\n0::/../../other\n")
    write(groups / "memory", **{"memory.limit_in_bytes": LARGEST, "memory.usage_in_bytes": 700_000})
    assert_unlimited()
    write(groups / "memory", **{"memory.limit_in_bytes": 1_000_000, "memory.stat": "inactive_file 1\ntotal_inactive_file 150000"})
    assert (host_memory.host_memory(), host_memory.free_host_memory()) == (1_000_000, 450_000)


def test_kills_of_the_container_come_before_those_of_the_machine(groups: Path) -> None:
    write(groups, **{"memory.events": "low 0\noom 3\noom_kill 2"})
    assert host_memory.out_of_memory_kills() == 2
