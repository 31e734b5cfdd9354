"""A missing Ray cluster is detected within seconds; tests/launch/test_ray.py has those of a running one."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from finetune.errors import UserError
from finetune.ray_cluster import cluster_connection
from tests import loopback


def test_without_ray_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(UserError, match=r"^Ray is not installed; `pip install 'overtone\[ray\]'`, on every machine"),
        cluster_connection.connect("127.0.0.1:6379"),
    ):
        raise AssertionError("it was opened")


@pytest.mark.parametrize("address", [None, "", "auto", "local"])
def test_addresses_in_ray_s_own_forms_are_accepted(address: str | None) -> None:
    cluster_connection.check_address(address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("10.0.0.1", r"'10\.0\.0\.1' is not HOST:PORT"),
        ("head:ray", r"'head:ray' is not HOST:PORT"),
        ("ray://10.0.0.1:10001", r"^ray://10\.0\.0\.1:10001: Ray Client is not supported; .* `ray job submit`"),
    ],
)
def test_an_invalid_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cluster_connection.check_address(address)


@pytest.mark.parametrize("family", ["127.0.0.1:{}", "[::1]:{}", "no.such.machine.invalid:{}"])
def test_an_address_without_a_cluster_is_refused(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", family.format(loopback.free_port()))
    without_init = SimpleNamespace(__spec__=importlib.util.find_spec("ray"))  # Ray's own attempt would take minutes
    monkeypatch.setitem(sys.modules, "ray", without_init)
    with pytest.raises(UserError, match=r"^no Ray cluster at .*`ray start --head`"), cluster_connection.connect(None):
        raise AssertionError("it was opened")
