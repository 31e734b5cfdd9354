"""A missing Ray cluster is detected within seconds; tests/launch/test_ray.py has those of a running one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.ray_cluster import cluster_connection
from tests import loopback

ROOT = Path(__file__).parents[3]


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


def test_a_ray_cluster_asks_for_a_token(tmp_path: Path) -> None:
    """CVE-2025-34351. A cluster that `connect` starts always does; `ray start` does once the page's first command has made a token."""
    page = (ROOT / "docs" / "several_machines.md").read_text(encoding="utf-8")
    assert page.index("ray get-auth-token --generate") < page.index("ray start --head")
    program = (
        "import os; from ray._private.authentication import authentication_token_setup as setup; setup.generate_and_save_token(); "
        "print(setup.maybe_enable_token_auth_if_token_available(), os.environ.pop('RAY_AUTH_MODE')); "
        "print(setup.enable_token_auth_by_default(), os.environ['RAY_AUTH_MODE'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "token"] * 2, "by `ray start`, by `ray.init`"
