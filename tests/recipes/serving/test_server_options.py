"""Tests of `overtone.recipes.serving.server_options`."""

from __future__ import annotations

import argparse

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.serving.server_options import Address, add_server_options, check_server_options, require_packages


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_server_options(parser)
    parser.add_argument("--most", type=int, default=5)
    return parser.parse_args(argv)


@pytest.mark.parametrize("option", ["batch", "queue", "deadline-seconds", "drain-seconds", "most"])
def test_a_number_that_is_too_small_is_refused(option: str) -> None:
    check_server_options(parse(), ("most",))
    with pytest.raises(UserError, match=f"--{option} -1 is too small"):
        check_server_options(parse(f"--{option}", "-1"), ("most",))


@pytest.mark.parametrize("option", ["queue", "drain-seconds"])
def test_no_queue_and_no_draining_are_possible(option: str) -> None:
    check_server_options(parse(f"--{option}", "0"), ())


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="--port 70000"):
        check_server_options(parse("--port", "70000"), ())


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    require_packages(("json",), "overtone[serve]")
    with pytest.raises(UserError, match=r"serve needs no_such_package, which .* pip install 'overtone\[serve\]'"):
        require_packages(("json", "no_such_package"), "overtone[serve]")


def test_addresses_have_the_form_of_their_protocol() -> None:
    assert [Address(host, 80).url for host in ("127.0.0.1", "::1")] == ["http://127.0.0.1:80", "http://[::1]:80"]
