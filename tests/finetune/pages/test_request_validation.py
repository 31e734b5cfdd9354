"""Which requests pass the guard and how they are rewritten; no request crashes it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.finetune.pages import request_validation
from overtone.finetune.pages.client_addresses import parse_proxies
from overtone.finetune.pages.request_validation import (
    Caller,
    RequestError,
    Route,
    add_request_guard,
    is_this_machine,
    parse_json,
    require_own_site,
)
from tests.asgi import HOME, Answer, ask

JSON = (b"content-type", b"application/json")
ROUTES = (
    Route("GET", "/"),
    Route("GET", "/data", query={"session": str.isalnum}),
    Route("POST", "/call", largest=100, check=lambda value: value),
    Route("POST", "/upload", largest=100),
)


def admit(caller: Caller) -> bool:
    require_own_site(caller.headers, local=True)
    return True


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """What reached the app behind the guard."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    seen = {"query": scope["query_string"].decode(), "body": body.decode("latin-1"), "scheme": scope["scheme"], "client": scope["client"]}
    seen["headers"] = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


GUARDED = add_request_guard(echo, ROUTES, admit)


def passed(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer
    return json.loads(answer.body)


def test_only_listed_routes_are_answered() -> None:
    for method, path in (("GET", "/"), ("HEAD", "/"), ("GET", "/data")):
        assert ask(GUARDED, method, path).status == 200
    for method, path in (
        ("GET", "/x"),
        ("POST", "/"),
        ("GET", "/data/"),
        ("GET", "/data\n"),
        ("DELETE", "/data"),
        ("OPTIONS", "/"),
        ("GET", "//"),
    ):
        answer = ask(GUARDED, method, path)
        assert answer.status == 404 and method in answer.body.decode()


def test_only_listed_headers_and_parameters_are_passed_on() -> None:
    more = ((b"X-Forwarded-Host", b"evil"), (b"Cookie", b"a=b"), (b"Authorization", b"Bearer x"), (b"x-forwarded-proto", b"javascript"))
    seen = passed(ask(GUARDED, "GET", "/data", headers=(HOME, *more, (b"Range", b"bytes=0-")), query=b"session=abc&deep_link=x&page=y"))
    assert seen["headers"] == {"host": "127.0.0.1:7861", "range": "bytes=0-"} and seen["query"] == "session=abc"
    assert ask(GUARDED, "GET", "/data", query=b"session=a/b").status == 400


def test_only_requests_from_this_machine_and_site_are_admitted() -> None:
    for host in (b"localhost:7861", b"[::1]:7861", b"127.0.0.1", b"LOCALHOST", b"127.0.0.9:1"):
        assert ask(GUARDED, "GET", "/", headers=((b"host", host),)).status == 200, host
    for host in (b"", b"[", b"[::1", b"attacker.example:7861", b"127.0.0.1.attacker.example", b"localhost@evil", b"127.0.0.1:x", b"\xff"):
        assert ask(GUARDED, "GET", "/", headers=((b"host", host),)).status == 400, host
    assert ask(GUARDED, "GET", "/", headers=()).status == 400
    assert ask(GUARDED, "GET", "/", headers=(HOME, HOME)).status == 400, "two hosts: each reader would take another"
    for origin in (b"http://attacker.example", b"http://[", b"null", b"", b"http://127.0.0.1:9999", b"http://127.0.0.1:7861.evil"):
        assert ask(GUARDED, "GET", "/", headers=(HOME, (b"origin", origin))).status == 403, origin
    for origin in (b"http://127.0.0.1:7861", b"https://127.0.0.1:7861"):
        assert ask(GUARDED, "GET", "/", headers=(HOME, (b"origin", origin))).status == 200
    for site, mode, status in ((b"cross-site", b"no-cors", 403), (b"same-site", b"cors", 403), (b"cross-site", b"navigate", 200)):
        assert ask(GUARDED, "GET", "/", headers=(HOME, (b"sec-fetch-site", site), (b"sec-fetch-mode", mode))).status == status
    require_own_site({"host": "example.org"}, local=False)
    require_own_site({}, local=False)
    with pytest.raises(RequestError, match="not the name of a server"):
        require_own_site({"host": "["}, local=False)
    assert not is_this_machine("127.0.0.1.evil:80")


def test_the_size_of_a_body_is_limited_whatever_it_declares() -> None:
    for path, kind in (("/call", JSON), ("/upload", (b"content-type", b"text/plain"))):
        assert ask(GUARDED, "POST", path, b"1", (HOME, kind, (b"content-length", b"1"))).status == 200
        assert ask(GUARDED, "POST", path, b"1", (HOME, kind, (b"content-length", b"101"))).status == 413
        assert ask(GUARDED, "POST", path, b"1", (HOME, kind, (b"content-length", b"\xb2"))).status == 400
    assert ask(GUARDED, "POST", "/call", [b'"' + b"a" * 60, b"b" * 60 + b'"'], (HOME, JSON)).status == 413
    with pytest.raises(RequestError, match="larger than 100 bytes"):
        ask(GUARDED, "POST", "/upload", [b"a" * 60] * 2)
    assert ask(GUARDED, "GET", "/", b"", (HOME, (b"content-length", b"5"))).status == 413, "nothing is read of what needs no body"


def test_an_encoded_body_is_refused() -> None:
    for encoding in (b"gzip", b"GZIP", b"deflate, gzip", b"identity, gzip", b"br", b""):
        for path, kind in (("/call", JSON), ("/upload", (b"content-type", b"text/plain"))):
            answer = ask(GUARDED, "POST", path, b"1", (HOME, kind, (b"Content-Encoding", encoding)))
            assert answer.status == 415 and b"content-encoding" in answer.body and answer.headers["accept-encoding"] == "identity"
    assert passed(ask(GUARDED, "POST", "/call", b"1", (HOME, JSON, (b"content-encoding", b"Identity"))))["body"] == "1"


def test_only_a_trusted_proxy_names_the_client_and_the_scheme() -> None:
    """`ask` comes from 127.0.0.1."""
    sent = (HOME, (b"X-Forwarded-For", b"6.6.6.6, 192.0.2.7"), (b"x-forwarded-proto", b"https"), (b"X-Real-IP", b"6.6.6.6"))
    forged = (
        *sent,
        (b"Forwarded", b"for=6.6.6.6;proto=https;host=evil"),
        (b"X-Forwarded-Host", b"evil"),
        (b"X-Forwarded-Prefix", b"/evil"),
    )
    callers = list[str]()

    def record(caller: Caller) -> bool:
        callers.append(caller.address)
        return True

    for proxies, client, scheme in ((["10.0.0.0/8"], ["127.0.0.1", 1234], "http"), (["127.0.0.0/8"], ["192.0.2.7", 0], "https")):
        guarded = add_request_guard(echo, ROUTES, record, proxies=parse_proxies(proxies))
        seen = passed(ask(guarded, "GET", "/data", headers=forged))
        assert (seen["client"], seen["scheme"], seen["headers"]) == (client, scheme, {"host": "127.0.0.1:7861"})
    assert callers == ["127.0.0.1", "192.0.2.7"]
    for name, value in ((b"x-forwarded-for", b"1.2.3.4, unknown"), (b"x-forwarded-proto", b"javascript")):
        answer = ask(guarded, "GET", "/data", headers=(HOME, (name, value)))
        assert answer.status == 400 and b"of the proxy 127.0.0.1 cannot be read" in answer.body
        assert ask(GUARDED, "GET", "/data", headers=(HOME, (name, value))).status == 200, "nobody reads those of a stranger"


def test_json_is_parsed_strictly_and_serialized_again() -> None:
    seen = passed(ask(GUARDED, "POST", "/call", b'{"a" : "\\u00e9"}', (HOME, JSON, (b"content-length", b"16"))))
    assert seen["body"].encode("latin-1").decode() == '{"a": "é"}' and seen["headers"]["content-length"] == "11"
    for body in (
        b'{"a": 1, "a": 2}',
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b"NaN",
        b"[1e999]",
        b"",
        b"{",
        b"[" * 99,
        b"\xff",
        b'"\\ud800',
        b"1" * 99 + b"x",
    ):
        answer = ask(GUARDED, "POST", "/call", body, (HOME, JSON))
        assert answer.status == 400 and "JSON" in answer.body.decode(), body
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        parse_json(b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        parse_json(b"9" * 5000)
    assert ask(GUARDED, "POST", "/call", b"1", (HOME, (b"content-type", b"text/plain"))).status == 415


def test_websockets_are_closed() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(GUARDED({"type": "websocket", "path": "/", "headers": []}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


NAMES = st.sampled_from([*sorted(name.encode() for name in request_validation.HEADERS), b"sec-fetch-site", b"cookie", b"x-direct-url"])
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=12)), max_size=4)


@settings(max_examples=300, deadline=None)
@given(
    headers=HEADERS, path=st.text(max_size=8), route=st.sampled_from(["GET /", "POST /call", "POST /upload"]), query=st.binary(max_size=9)
)
def test_no_request_crashes_the_guard(headers: list[tuple[bytes, bytes]], path: str, route: str, query: bytes) -> None:
    method, known = route.split()
    for place in (known, f"/{path}"):
        try:
            status = ask(GUARDED, method, place, b"[1]", (HOME, *headers), query).status
        except RequestError as rejected:  # of a body that was counted on its way
            status = rejected.status_code
        assert 200 <= status < 500
