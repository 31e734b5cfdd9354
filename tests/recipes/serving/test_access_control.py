"""Tests of `overtone.recipes.serving.access_control`."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import Caller, RequestError
from overtone.recipes.serving.access_control import (
    FAILURE_LIFETIME,
    FREE_TRIES,
    LONGEST_WAIT,
    MAX_CLIENTS,
    TOKEN,
    AccessControl,
    AccessPolicy,
    load_access_policy,
    read_token,
)

SECRET = "0123456789abcdef"
HOME = {"host": "127.0.0.1:7861"}


def test_other_machines_are_admitted_only_with_a_token(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.9"):
        assert load_access_policy(host, None, (), {}) == AccessPolicy(None, local=True)
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(UserError, match=f"--host {host} would admit everyone who can reach this address; set {TOKEN}"):
            load_access_policy(host, None, (), {})
        assert load_access_policy(host, None, (), {TOKEN: SECRET}) == AccessPolicy(SECRET, local=False)
    (tmp_path / "token").write_text(f"{SECRET}from-a-file\n")
    assert load_access_policy("0.0.0.0", tmp_path / "token", (), {TOKEN: SECRET}).token == f"{SECRET}from-a-file"
    assert SECRET not in repr(load_access_policy("0.0.0.0", None, (), {TOKEN: SECRET}))


@pytest.mark.parametrize("bad", ["", "short", "0123456789 abcdef", "0123456789abcdéf"])
def test_an_invalid_token_is_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{TOKEN}: a token must have 16 or more"):
        load_access_policy("127.0.0.1", None, (), {TOKEN: bad})
    (tmp_path / "token").write_text(bad)
    with pytest.raises(UserError, match="--token-file .*: a token must have 16 or more"):
        load_access_policy("127.0.0.1", tmp_path / "token", (), {})
    with pytest.raises(UserError, match="--token-file .* cannot be read"):
        load_access_policy("127.0.0.1", tmp_path / "no", (), {})


def test_a_trusted_proxy_must_be_an_address_or_a_network() -> None:
    assert "10.1.2.3" in load_access_policy("127.0.0.1", None, ["10.0.0.0/8"], {}).proxies
    with pytest.raises(UserError, match="--trusted-proxy proxy.example is neither an address nor a network"):
        load_access_policy("127.0.0.1", None, ["10.0.0.1", "proxy.example"], {})


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


class ManualClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status(control: AccessControl, shown: str | None = None, address: str = "192.0.2.1", **headers: str) -> int:
    given = headers if shown is None else headers | {"authorization": shown}
    try:
        control.admit(Caller(HOME | given, address))
    except RequestError as rejected:
        return rejected.status_code
    return 200


def test_requests_need_the_right_token() -> None:
    control = AccessControl(AccessPolicy(SECRET, local=False), ManualClock())
    for shown in (f"Bearer {SECRET}", f"bearer {SECRET}", basic(SECRET)):
        assert status(control, shown) == 200
    wrong = (
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
        SECRET,
        basic(""),
        basic("é"),
        "Basic !",
        "Basic /w==",
        "Basic \xe9",
        "Bearer \xe9",
    )
    for number, shown in enumerate(("", "Bearer", *wrong)):
        assert status(control, shown, f"192.0.2.{number}") == 401, shown
    assert status(control) == 401
    assert read_token("Basic \xe9") == "" and read_token(basic("a:b")) == "a:b"


def test_a_public_path_needs_no_token_but_stays_closed_to_other_sites() -> None:
    control = AccessControl(AccessPolicy(SECRET, local=True), ManualClock(), public=frozenset({"/health"}))
    control.admit(Caller({"host": "127.0.0.1:7861"}, "192.0.2.1", "/health"))
    for headers, path, code in (
        ({"host": "127.0.0.1:7861"}, "/metrics", 401),
        ({"host": "127.0.0.1:7861"}, "/health/", 401),
        ({"host": "attacker.example"}, "/health", 400),
        ({"host": "127.0.0.1:7861", "origin": "http://attacker.example"}, "/health", 403),
    ):
        with pytest.raises(RequestError) as caught:
            control.admit(Caller(headers, "192.0.2.1", path))
        assert caught.value.status_code == code


def test_wrong_tokens_delay_only_their_client_and_longer_each_time() -> None:
    clock = ManualClock()
    control = AccessControl(AccessPolicy(SECRET, local=False), clock)
    assert [status(control, f"Bearer wrong{at}") for at in range(FREE_TRIES)] == [401] * FREE_TRIES
    waits = []
    for at in range(9):
        with pytest.raises(RequestError, match="too many wrong tokens from this address; try again in") as caught:
            control.admit(
                Caller(HOME | {"authorization": f"Bearer {SECRET}"}, "192.0.2.1")
            )  # not compared, or guessing would be possible during the wait
        assert caught.value.status_code == 429 and caught.value.headers is not None
        waits.append(int(caught.value.headers["retry-after"]))
        assert status(control, f"Bearer {SECRET}", "192.0.2.2") == 200 and status(control, address="192.0.2.1") == 401
        clock.now += waits[-1]
        assert status(control, f"Bearer guess{at}") == 401
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    clock.now += LONGEST_WAIT
    assert status(control, f"Bearer {SECRET}") == 200


def test_repeating_one_wrong_token_does_not_count_as_guessing() -> None:
    control = AccessControl(AccessPolicy(SECRET, local=False), ManualClock())
    assert {status(control, "Bearer yesterdays") for _ in range(50)} == {401}
    assert status(control, f"Bearer {SECRET}") == 200


def test_the_record_of_wrong_tokens_is_limited_and_expires() -> None:
    clock = ManualClock()
    control = AccessControl(AccessPolicy(SECRET, local=False), clock)
    for at in range(MAX_CLIENTS + 10):
        status(control, "Bearer x", f"10.{at >> 16}.{at >> 8 & 255}.{at & 255}")
    assert len(control._failures) == MAX_CLIENTS and "10.0.0.9" not in control._failures
    for at in range(FREE_TRIES - 1):
        status(control, f"Bearer wrong{at}")
    clock.now += FAILURE_LIFETIME + 1
    assert [status(control, f"Bearer late{at}") for at in range(2)] == [401, 401]


def test_pages_of_other_sites_are_rejected() -> None:
    local = AccessControl(AccessPolicy(None, local=True))
    assert status(local) == status(local, origin="http://127.0.0.1:7861") == status(local, host="localhost:1") == 200
    for headers, wanted in (
        ({"host": "attacker.example:7861"}, 400),
        ({"host": "["}, 400),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "null"}, 403),
    ):
        assert status(local, **headers) == wanted, headers
    assert status(AccessControl(AccessPolicy(SECRET, local=False)), f"Bearer {SECRET}", host="example.org") == 200
    assert status(AccessControl(AccessPolicy(SECRET, local=False)), f"Bearer {SECRET}", host="[") == 400
