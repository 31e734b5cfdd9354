"""Who sent a request: addresses, networks, and what proxies say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

from overtone.finetune.errors import UserError
from overtone.finetune.pages.client_addresses import find_client, find_scheme, group_address, parse_proxies
from overtone.finetune.pages.request_validation import Route, add_request_guard
from overtone.recipes.serving.access_control import FREE_TRIES, AccessControl, AccessPolicy
from overtone.recipes.serving.streamed_response import find_client as find_turn
from tests.raw_http import connect, read_status, request, serving

SECRET = "0123456789abcdef-secret"


def test_a_client_is_an_ipv4_address_or_an_ipv6_network() -> None:
    assert group_address("2001:db8::1") == group_address("2001:db8::ffff:2") != group_address("2001:db8:0:1::1")
    assert group_address("::ffff:192.0.2.1") == group_address("192.0.2.1") == "192.0.2.1"
    assert group_address("fe80::1%eth0") == group_address("fe80::2%eth1") == "fe80::/64"
    assert group_address("") == "" and group_address("testclient") == "testclient"


def test_proxies_are_addresses_and_networks() -> None:
    proxies = parse_proxies(["10.0.0.5", "192.168.0.0/16", "2001:db8::/32"])
    for address in ("10.0.0.5", "::ffff:10.0.0.5", "192.168.9.9", "2001:db8:1::1"):
        assert address in proxies
    for address in ("10.0.0.6", "193.168.9.9", "2001:db9::1", "", "testclient"):
        assert address not in proxies
    assert "127.0.0.1" not in parse_proxies([])


@pytest.mark.parametrize("value", ["proxy.example", "10.0.0.5/8", "10.0.0.0/33", "", "*", "10.0.0.1:80", "0.0.0.0/0", "::/0"])
def test_other_proxies_are_refused(value: str) -> None:
    with pytest.raises(UserError, match="--trusted-proxy "):
        parse_proxies([value])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", ["1.2.3.4"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["", " , "], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("::ffff:10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4, 10.0.0.2"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6", "1.2.3.4", "10.0.0.2"], "1.2.3.4"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["nonsense, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4"),
        ("10.0.0.1", ["[2001:DB8::1]:443"], "2001:db8::1"),
        ("10.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(peer: str, forwarded: list[str], client: str) -> None:
    assert find_client(peer, forwarded, parse_proxies(["10.0.0.0/24"])) == client


@pytest.mark.parametrize(
    "value", ["unknown", "1.2.3", "1.2.3.4:port", "fe80::1%eth0", "_hidden", "1.2.3.4 5.6.7.8", "1.2.3.4, x, 10.0.0.2"]
)
def test_an_address_that_is_read_must_be_one(value: str) -> None:
    with pytest.raises(ValueError):
        find_client("10.0.0.1", [value], parse_proxies(["10.0.0.0/24"]))


def test_the_scheme_is_that_of_the_last_proxy() -> None:
    assert [find_scheme(given, "http") for given in ([], ["https"], ["http, HTTPS"], ["http", "https"])] == ["http", *["https"] * 3]
    for value in ("", "javascript", "https,"):
        with pytest.raises(ValueError):
            find_scheme([value], "http")


def test_all_requests_of_an_address_share_its_turns(capsys: pytest.CaptureFixture[str]) -> None:
    """`find_client` is the client that the queue of a server takes turns for."""
    clients = list[str]()

    async def record(scope: Any, receive: Any, send: Any) -> None:
        clients.append(find_turn(Request(scope)))
        await answer(scope, receive, send)

    proxies = parse_proxies(["127.0.0.2"])
    guarded = add_request_guard(record, [Route("GET", "/")], lambda _: True, proxies=proxies)
    with serving(guarded, proxies=proxies) as (port, _):
        for source, more in (("127.0.0.1", ""), ("127.0.0.2", ", 203.0.113.66")):
            for at in range(20):
                assert ask(port, source, "", f"X-Forwarded-For: 198.51.100.{at}{more}") == 200
    assert clients == ["127.0.0.1"] * 20 + ["203.0.113.66"] * 20
    assert capsys.readouterr().err == ""


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(params=[[], ["127.0.0.2"]], ids=["no proxy", "a proxy"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    proxies = parse_proxies(request.param)
    control = AccessControl(AccessPolicy(SECRET, local=False, proxies=proxies), clock=lambda: 0.0)
    with serving(add_request_guard(answer, [Route("GET", "/")], control.admit, proxies=proxies), proxies=proxies) as (opened, _):
        yield opened


def ask(port: int, source: str, token: str, *headers: str) -> int:
    with connect(port, source) as connection:
        connection.sendall(request("/", f"Authorization: Bearer {token}", *headers))
        return read_status(connection)


def test_rotating_addresses_do_not_avoid_the_lockout_and_lock_out_nobody_else(port: int) -> None:
    """A stranger on this machine, and one behind the proxy that prepends to what the proxy says."""
    for source, more in (("127.0.0.1", ""), ("127.0.0.2", ", 203.0.113.66")):
        for name in ("X-Forwarded-For", "x-forwarded-for"):
            statuses = [
                ask(port, source, f"wrong{at}", f"{name}: 198.51.100.{at}{more}", f"X-Real-IP: 198.51.100.{at}") for at in range(30)
            ]
            assert set(statuses[FREE_TRIES:]) == {429}
    assert ask(port, "127.0.0.3", SECRET, "X-Forwarded-For: 127.0.0.1") == 200
    assert ask(port, "127.0.0.1", SECRET) == 429
