"""Tests of `tests.shared_folders`: one process builds and the others wait; what a process that died has left is not read."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.shared_folders import find_common_folder, share_folder


def start_worker(run: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Act as xdist's worker of this name from now on; returns its TempPathFactory."""
    base = run / f"popen-{name}"
    base.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
    return SimpleNamespace(getbasetemp=lambda: base)


def write(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    (folder / "model").write_text("whole")


def must_not_build(folder: Path) -> None:
    raise AssertionError(f"{folder} was built already")


def test_one_worker_builds_and_the_other_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = share_folder(start_worker(tmp_path, "gw0", monkeypatch), "voice", write)
    other = start_worker(tmp_path, "gw1", monkeypatch)
    assert share_folder(other, "voice", must_not_build) == built and (built / "model").read_text() == "whole"
    assert share_folder(other, "another", write) != built


def test_others_wait_while_a_worker_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start_worker(tmp_path, "gw0", monkeypatch)

    def is_locked() -> bool:
        with (find_common_folder(worker) / "voice.lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    seen = list[bool]()
    share_folder(worker, "voice", lambda _: seen.append(is_locked()))
    assert seen == [True] and not is_locked()


def die(folder: Path) -> None:
    (folder / "partial").write_text("half a mo")
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_worker_that_died_another_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = multiprocessing.get_context("fork").Process(
        target=share_folder, args=(start_worker(tmp_path, "gw0", monkeypatch), "voice", die)
    )
    first.start()
    first.join(60)
    assert first.exitcode == -signal.SIGKILL and next(tmp_path.rglob("partial")).is_file()
    built = share_folder(start_worker(tmp_path, "gw1", monkeypatch), "voice", write)
    assert [path.name for path in built.iterdir()] == ["model"]


def test_after_an_error_the_next_one_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        (folder / "partial").touch()
        raise RuntimeError("no memory")

    worker = start_worker(tmp_path, "gw0", monkeypatch)
    with pytest.raises(RuntimeError, match="no memory"):
        share_folder(worker, "voice", fail)
    assert [path.name for path in share_folder(worker, "voice", write).iterdir()] == ["model"]


def test_a_process_without_workers_shares_with_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    alone: Any = SimpleNamespace(getbasetemp=lambda: tmp_path / "pytest-7")
    assert find_common_folder(alone) == tmp_path / "pytest-7" / "shared"
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert find_common_folder(alone) == tmp_path / "pytest-7" / "shared", "a pytest that a worker started inherits the variable"
    assert find_common_folder(start_worker(tmp_path, "gw0", monkeypatch)) == tmp_path / "shared"
