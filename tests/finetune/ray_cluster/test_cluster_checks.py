"""Checks before a start, without a running Ray cluster; tests/launch/test_ray.py has those of a running one."""

from __future__ import annotations

from pathlib import Path

import pytest

import overtone
from overtone.finetune.ray_cluster import cluster_checks


@pytest.mark.parametrize(
    ("requested", "there", "taken"), [(None, True, "GPU"), (None, False, "CPU"), (True, False, "GPU"), (False, True, "CPU")]
)
def test_a_worker_takes_what_was_requested_or_a_gpu_if_there_is_any(
    requested: bool | None, there: bool, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_checks, "has_resource", lambda _: there)
    assert cluster_checks.choose_worker_resources(requested) == {taken: 1.0}


def test_a_machine_reports_missing_files_and_its_versions(tmp_path: Path) -> None:
    seen = cluster_checks.inspect_machine([str(tmp_path), str(tmp_path / "gone")])
    assert seen == {"missing": [str(tmp_path / "gone")], "version": overtone.__version__}
