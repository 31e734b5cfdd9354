"""The reports of a Ray worker; its training is in tests/launch/test_ray.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("ray")

from overtone.finetune.ray_cluster.worker import Reports


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
