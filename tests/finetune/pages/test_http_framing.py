"""Requests that a proxy and this server could read in different ways, over real sockets: refused, and the connection is closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from overtone.finetune.pages.http_framing import LARGEST_HEAD, MOST_HEADERS
from tests.raw_http import connect, read_status, read_to_end, serving

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
"""A second request, which must not be answered after a refusal."""
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    async def echo(call: Request) -> Response:
        return PlainTextResponse(f"[{call.url.path} {(await call.body()).decode()}]")

    with serving(Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])) as (opened, _):
        yield opened


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "length of the body is given twice"),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, "length of the body is given twice"),
        (POST + b"TRANSFER-ENCODING : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, "length of the body is given twice"),
        (POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, "length of the body is given twice"),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400, "length of the body is given twice"),
        (POST + b"Content-Length: 5, 6\r\n\r\nhello!", 400, "not valid HTTP/1.1"),
        (POST + b"Content-Length: +5\r\n\r\nhello", 400, "not valid HTTP/1.1"),
        (POST + b"Content-Length: 0x5\r\n\r\nhello", 400, "not valid HTTP/1.1"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "not valid HTTP/1.1"),
        (POST + b"Transfer-Encoding: identity\r\n\r\n", 501, "not valid HTTP/1.1"),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "length of the body is given twice"),
        (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "transfer-encoding needs HTTP/1.1"),
        (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400, "extends over several lines"),
        (POST + b"X: a\r\n\tb\r\n\r\n", 400, "extends over several lines"),
        (b"POST / HTTP/1.1\nHost: x\n\n", 400, "does not end with CR LF"),
        (POST + b"X: a\nContent-Length: 5\r\n\r\nhello", 400, "does not end with CR LF"),
        (POST + b"X: a\rContent-Length: 5\r\n\r\nhello", 400, "not valid HTTP/1.1"),
        (POST + b"X: a\0b\r\n\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Content-Length : 5\r\n\r\nhello", 400, "not valid HTTP/1.1"),
        (POST + b": x\r\n\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Host: y\r\n\r\n", 400, "not valid HTTP/1.1"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "not valid HTTP/1.1"),
        (b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "not valid HTTP/1.1"),
        (b"GET /\r\n\r\n", 400, "not valid HTTP/1.1"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505, "version of HTTP"),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505, "version of HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "version of HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not valid HTTP/1.1"),
        (b"GET http://other/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "must be a path"),
        (b"CONNECT other:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "must be a path"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400, "must be a path"),
        (POST + b"Expect: something\r\nContent-Length: 5\r\n\r\nhello", 417, "100-continue"),
        (POST + b"X: " + b"a" * LARGEST_HEAD, 431, "32768 bytes"),
        (POST + b"X: " + b"a" * LARGEST_HEAD + b"\r\n\r\n", 431, "32768 bytes"),
        (POST + b"X: a\r\n" * MOST_HEADERS + b"\r\n", 431, "100 headers"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400, "not valid HTTP/1.1"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 99, 400, "not valid HTTP/1.1"),
    ],
)
def test_ambiguous_requests_are_refused_and_end_the_connection(
    sent: bytes, status: int, reason: str, port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(port) as connection:
        connection.sendall(sent + NEXT)
        answer = read_to_end(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in head.lower() and reason in body.decode()
    assert b"/next" not in answer and answer.count(b"HTTP/1.1 ") == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (POST + b"Content-Length: 5\r\n\r\nhello", b"[/ hello]"),
        (POST + b"Content-Length: 5, 5\r\n\r\nhello", b"[/ hello]"),
        (POST + b"Transfer-Encoding: Chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n", b"[/ hello]"),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", b"[/a ]"),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (LARGEST_HEAD - 1000) + b"\r\n\r\n", b"[/a ]"),
    ],
)
def test_valid_requests_are_answered_and_the_next_one_too(sent: bytes, answer: bytes, port: int) -> None:
    """In one segment, and byte by byte."""
    for pieces in ([sent + NEXT], [bytes([byte]) for byte in sent + NEXT] if len(sent) < 1000 else []):
        if pieces:
            with connect(port) as connection:
                for piece in pieces:
                    connection.sendall(piece)
                received = read_to_end(connection)
            assert received.count(b" 200 OK") == 2 and answer in received and b"[/next ]" in received


def test_a_body_is_asked_for_when_the_application_reads_it(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        assert read_status(connection) == 200


def test_an_error_in_a_body_whose_response_has_begun_ends_the_connection(capfd: pytest.CaptureFixture[str]) -> None:
    async def answer(scope: dict, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"early", "more_body": True})  # type: ignore[operator]
        while (await receive())["type"] != "http.disconnect":  # type: ignore[operator]
            pass

    with serving(answer) as (port, _), connect(port) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        assert b"early" in connection.recv(2**16) + connection.recv(2**16)
        connection.sendall(b"nonsense\r\n")
        read_to_end(connection)
    assert "Traceback" not in capfd.readouterr().err
