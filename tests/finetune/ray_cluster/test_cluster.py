"""A Ray cluster that is not there is missed within seconds. What one that is there lacks: tests/launch/test_ray.py."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

import finetune
from finetune.errors import UserError
from finetune.ray_cluster import cluster
from tests import loopback


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(UserError, match=r"^Ray is not installed; `pip install 'overtone\[ray\]'`, on every machine"),
        cluster.connect("127.0.0.1:6379"),
    ):
        raise AssertionError("it was opened")


@pytest.mark.parametrize("address", [None, "", "auto", "local"])
def test_ray_s_own_names_for_places_pass(address: str | None) -> None:
    cluster.check_address(address)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("10.0.0.1", r"'10\.0\.0\.1' is not HOST:PORT"),
        ("head:ray", r"'head:ray' is not HOST:PORT"),
        ("ray://10.0.0.1:10001", r"^ray://10\.0\.0\.1:10001: Ray Client is not supported; .* `ray job submit`"),
    ],
)
def test_what_is_no_address(address: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        cluster.check_address(address)


@pytest.mark.parametrize("family", ["127.0.0.1:{}", "[::1]:{}", "no.such.machine.invalid:{}"])
def test_nobody_answers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", family.format(loopback.free_port()))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"^no Ray cluster at .*`ray start --head`"), cluster.connect(None):
        raise AssertionError("it was opened")
    assert time.monotonic() - began < 60


def test_a_machine_tells_what_it_does_not_see_and_what_it_runs(tmp_path: Path) -> None:
    seen = cluster.inspect_machine([str(tmp_path), str(tmp_path / "gone")])
    assert seen == {"missing": [str(tmp_path / "gone")], "version": finetune.__version__}
