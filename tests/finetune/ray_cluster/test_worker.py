"""The reports and waits of a Ray worker; its training is in tests/launch/test_ray.py."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest

pytest.importorskip("ray")

from finetune.ray_cluster import worker
from finetune.ray_cluster.worker import Reports, await_release
from finetune.storage import files


def test_the_latest_numbers_are_kept_and_the_reason() -> None:
    reports = Reports(Path("unused"))
    reports.handle_event("started", 0, {"world": 2})
    reports.handle_event("step", 1, {"loss": 2.0, "lr": 1e-3})
    reports.handle_event("step", 2, {"loss": 1.0, "lr": 1e-3})
    reports.handle_event("evaluation", 2, {"val/loss": 1.5})
    reports.handle_event("stopped", 2, {"reason": "finished"})
    assert reports.at(2) == reports.at(math.inf) == {"step": 2, "loss": 1.0, "lr": 1e-3, "val/loss": 1.5}
    assert reports.at(1) == {"step": 1, "loss": 2.0, "lr": 1e-3}, "a checkpoint of step 1 may be committed later"
    assert reports.reason == "finished"


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
    monkeypatch.setattr(worker, "RELEASE_SECONDS", 0.1)
    lock = files.lock_folder(tmp_path / "run")
    await_release(tmp_path / "run")
    os.close(lock)
