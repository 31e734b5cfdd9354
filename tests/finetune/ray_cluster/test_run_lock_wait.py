"""Tests of `overtone.finetune.ray_cluster.run_lock_wait`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from overtone.finetune.ray_cluster import run_lock_wait
from overtone.finetune.ray_cluster.run_lock_wait import await_release
from overtone.finetune.storage import files


def test_a_worker_waits_for_the_folder_of_its_predecessor(tmp_path: Path) -> None:
    await_release(tmp_path / "free")
    lock = files.lock_folder(tmp_path / "run")
    released = threading.Event()

    def release() -> None:
        released.set()
        os.close(lock)

    threading.Timer(0.5, release).start()
    await_release(tmp_path / "run")
    assert released.is_set()
    os.close(files.lock_folder(tmp_path / "run"))


def test_a_folder_that_stays_locked_is_reported_by_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock_wait, "RELEASE_SECONDS", 0.1)
    lock = files.lock_folder(tmp_path / "run")
    await_release(tmp_path / "run")
    os.close(lock)
