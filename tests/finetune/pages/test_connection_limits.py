"""The layer in front of every server, over real sockets: slow, idle and many connections, and who is served meanwhile."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route as AppRoute

from overtone.finetune.pages import connection_limits
from overtone.finetune.pages.client_addresses import parse_proxies
from overtone.finetune.pages.connection_limits import ConnectionLimits, OpenConnections
from overtone.finetune.pages.request_validation import Route, add_request_guard
from overtone.recipes.serving.access_control import AccessControl, AccessPolicy
from tests.raw_http import PATIENCE, connect, read_status, read_to_end, request, serving

SECRET = "0123456789abcdef-secret"
TOKEN = f"Authorization: Bearer {SECRET}"
STRANGER, OTHER, CLIENT = "127.0.0.2", "127.0.0.3", "127.0.0.4"
LONG = 10_000.0
"""Seconds of limits that a test does not reach."""
PART = b"x" * 2**16


def patient(**limits: Any) -> ConnectionLimits:
    """Limits without an end, except for these."""
    return ConnectionLimits(**dict.fromkeys(("idle", "head", "body", "unread", "linger"), LONG) | limits)


class Gate:
    """An application behind a token: its stream and its waiting route last until `open` is called."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self.unread = 0
        """Bytes of the endless response that were sent."""

    def open(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._event.set)

    async def echo(self, call: Request) -> Response:
        return PlainTextResponse(str(len(await call.body())))

    async def stream(self, _: Request) -> Response:
        async def parts() -> Any:
            self._loop = asyncio.get_running_loop()
            yield b"begun"
            await self._event.wait()
            yield b"ended"

        return StreamingResponse(parts())

    async def endless(self, _: Request) -> Response:
        async def parts() -> Any:
            while True:
                yield PART
                await asyncio.sleep(0)  # the loop notices that the client is gone
                self.unread += len(PART)

        return StreamingResponse(parts())

    def guarded(self, token: str | None = SECRET) -> Any:
        routes = [("/", self.echo, 2**20), ("/health", self.echo, 0), ("/stream", self.stream, 0), ("/endless", self.endless, 0)]
        app = Starlette(routes=[AppRoute(path, answer, methods=["GET", "POST"]) for path, answer, _ in routes])
        allowed = [Route(method, path, largest=largest) for path, _, largest in routes for method in ("GET", "POST")]
        control = AccessControl(AccessPolicy(token, local=token is None), public=frozenset({"/health"}))
        return add_request_guard(app, allowed, control.admit)


@pytest.fixture
def gate() -> Iterator[Gate]:
    yield Gate()


def ask(port: int, source: str = CLIENT, path: str = "/", *headers: str) -> int:
    with connect(port, source) as connection:
        connection.sendall(request(path, *(headers or (TOKEN,))))
        return read_status(connection)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", request()[:-2], request("/", "Content-Length: 9", TOKEN, method="POST")])
@pytest.mark.parametrize("source", [STRANGER, CLIENT])
def test_a_client_with_the_token_is_served_beside_300_idle_connections(begun: bytes, source: str, gate: Gate) -> None:
    """Also from the address of the idle ones. Those that have shown the token and send no body hold 7/8 of their address's limit."""
    with serving(gate.guarded(), patient()) as (port, _), ExitStack() as opened:
        idle = [opened.enter_context(connect(port, source)) for _ in range(300)]
        for one in idle:
            with suppress(ConnectionError):  # made room for a later one
                one.sendall(begun)
        answered = ask(port)
        assert answered == 200 or (answered == 503 and TOKEN.encode() in begun and source == CLIENT)


def test_connections_with_the_token_stay_when_others_make_room(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(gate.guarded(), patient(total=8, per_address=8)) as (port, _), ExitStack() as opened:
        stream = opened.enter_context(connect(port, CLIENT))
        stream.sendall(request("/stream", TOKEN))
        read_until(stream, b"begun")
        kept = opened.enter_context(connect(port, CLIENT))
        kept.sendall(request("/", TOKEN))
        assert read_status(kept) == 200
        checked = opened.enter_context(connect(port, OTHER))
        checked.sendall(request("/health"))
        assert read_status(checked) == 200
        strangers = [opened.enter_context(connect(port, STRANGER)) for _ in range(20)]
        assert b" 503 " in read_to_end(strangers[0]), "the oldest one makes room"
        checked.sendall(request("/health"))
        assert read_status(checked) == 200, "the address with the most connections makes room first"
        for _ in range(3):
            kept.sendall(request("/", TOKEN))
            assert read_status(kept) == 200
        gate.open()
        read_until(stream, b"ended\r\n0\r\n\r\n")
    assert "made room for others" in capsys.readouterr().err


def read_until(stream: socket.socket, end: bytes) -> None:
    received = b""
    while end not in received:
        part = stream.recv(2**16)
        assert part, received
        received += part


def test_a_public_path_holds_no_connection(gate: Gate) -> None:
    """A stranger's connections that asked for /health make room as idle ones do."""
    with serving(gate.guarded(), patient(total=8, per_address=8)) as (port, _), ExitStack() as opened:
        for _ in range(12):
            one = opened.enter_context(connect(port, STRANGER))
            one.sendall(request("/health"))
            assert read_status(one) == 200
        assert ask(port) == 200


def test_an_address_has_a_limit_and_a_trusted_proxy_has_none(gate: Gate) -> None:
    limits = patient(total=64, per_address=8)
    for proxies, statuses in (([], [200] * 7 + [503] * 3), ([STRANGER], [200] * 10)):
        with serving(gate.guarded(), limits, parse_proxies(proxies)) as (port, _), ExitStack() as opened:
            found = []
            for _ in range(10):
                one = opened.enter_context(connect(port, STRANGER))
                one.sendall(request("/", TOKEN))
                found.append(read_status(one))
            assert found == statuses
            assert ask(port, OTHER) == 200


def test_an_eighth_of_the_connections_is_for_those_without_a_token_yet(gate: Gate) -> None:
    with serving(gate.guarded(), patient(total=8, per_address=8)) as (port, _), ExitStack() as opened:
        statuses = []
        for number in range(1, 10):
            one = opened.enter_context(connect(port, f"127.0.1.{number}"))
            one.sendall(request("/", TOKEN))
            statuses.append(read_status(one))
        assert statuses == [200] * 7 + [503] * 2


@pytest.mark.parametrize(
    ("limits", "sent", "answer"),
    [
        ({"idle": 0.0}, b"", b""),
        ({"head": 0.0}, b"G", b"408"),
        ({"head": 0.0}, request()[:-1], b"408"),
        ({"body": 0.0}, request("/", TOKEN, "Content-Length: 5", method="POST") + b"1234", b"408"),
        ({"body": 0.0}, request("/", TOKEN, "Transfer-Encoding: chunked", method="POST") + b"1\r\nx\r\n", b"408"),
        ({"body": 0.0}, request("/", TOKEN, "Expect: 100-continue", "Content-Length: 5", method="POST"), b"408"),
        ({"linger": 0.0}, request("/", "Content-Length: 5", method="POST"), b"401"),
    ],
)
def test_each_part_of_a_request_has_a_limit(limits: dict[str, float], sent: bytes, answer: bytes, gate: Gate) -> None:
    with serving(gate.guarded(), patient(**limits)) as (port, _), connect(port) as connection:
        connection.sendall(sent)
        statuses = [line.split()[1] for line in read_to_end(connection).split(b"\r\n") if line.startswith(b"HTTP/1.1")]
        assert [status for status in statuses if status != b"100"] == ([answer] if answer else [])


def test_bytes_one_by_one_do_not_extend_the_time(gate: Gate) -> None:
    """The limit is reached while the client still sends."""
    for limits, start in (
        ({"head": 0.2}, b"GET / HTTP/1.1\r\nx: "),
        (
            {"body": 0.2},
            request("/", TOKEN, "Content-Length: 900000", method="POST"),
        ),
    ):
        with serving(gate.guarded(), patient(**limits)) as (port, _), connect(port) as connection:
            connection.sendall(start)
            connection.settimeout(0.01)
            received, sent = b"", 0
            while b"408" not in received:
                try:
                    received += connection.recv(2**16)
                except TimeoutError:
                    connection.sendall(b"a")
                    sent += 1
                assert sent < 6_000
            assert sent > 1


def test_a_stream_outlives_every_limit_of_requests(gate: Gate) -> None:
    """The times pass, as two other connections show, while the stream waits for its next part."""
    with serving(gate.guarded(), ConnectionLimits(idle=1.0, head=1.0, body=1.0, unread=1.0)) as (port, _), connect(port) as stream:
        stream.sendall(request("/stream", TOKEN))
        read_until(stream, b"begun")
        with connect(port) as idle, connect(port) as slow:
            slow.sendall(b"GET")
            assert read_to_end(idle) == b"" and b" 408 " in read_to_end(slow)
        gate.open()
        read_until(stream, b"ended\r\n0\r\n\r\n")


def await_close(connection: socket.socket) -> None:
    """Wait until the server closes the connection, without reading from it."""
    closed = select.poll()
    closed.register(connection, select.POLLRDHUP)
    assert closed.poll(PATIENCE * 1000)


def test_a_client_that_does_not_read_is_closed(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(gate.guarded(), patient(unread=0.2)) as (port, _), connect(port) as connection:
        connection.sendall(request("/endless", TOKEN))
        await_close(connection)
        assert gate.unread < 2**26, "what the client did not read does not grow"
    assert "1 did not read their response" in capsys.readouterr().err


def test_a_client_that_reads_slowly_but_steadily_is_served(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads `progress` bytes of the rest gets the same time again."""
    unread = [100, 60, 20, 19]
    monkeypatch.setattr(connection_limits, "count_unread", lambda _: unread.pop(0))
    with serving(gate.guarded(), patient(unread=0.01, progress=40)) as (port, _), connect(port) as connection:
        connection.sendall(request("/endless", TOKEN))
        await_close(connection)
        assert unread == []


def test_what_is_in_the_buffers_of_the_process_and_of_the_kernel_is_unread() -> None:
    async def count() -> tuple[int, int]:
        near, listening = socket.socket(), socket.create_server(("127.0.0.1", 0))
        near.connect(listening.getsockname())
        far, _ = listening.accept()
        with listening, far:
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
            before = connection_limits.count_unread(transport)
            transport.write(bytes(2**24))
            after, read = connection_limits.count_unread(transport), len(far.recv(2**16, socket.MSG_PEEK))
            transport.abort()
        return before, after if read else 0

    before, after = asyncio.run(count())
    assert before == 0 and 2**22 < after < 2**24


def test_requests_on_one_connection_follow_each_other(gate: Gate) -> None:
    """Pipelined, in one segment and byte by byte; with a body that was refused before it came."""
    with serving(gate.guarded(), patient()) as (port, _), connect(port) as connection:
        for _ in range(2):
            connection.sendall(request("/", TOKEN, method="POST", body=b"12345"))
            assert read_status(connection) == 200
        connection.sendall(request("/", "Content-Length: 5", method="POST"))
        assert read_status(connection) == 401
        connection.sendall(b"12345" + request("/", TOKEN))
        assert read_status(connection) == 200
        for byte in request("/", TOKEN):
            connection.sendall(bytes([byte]))
        assert read_status(connection) == 200
        connection.sendall(request("/", TOKEN, "Connection: close") + b"")
        assert b" 200 " in read_to_end(connection)


def test_a_server_without_a_token_keeps_the_connections_that_were_answered(gate: Gate) -> None:
    with serving(gate.guarded(None), patient(total=8, per_address=8)) as (port, _), ExitStack() as opened:
        kept = opened.enter_context(connect(port))
        kept.sendall(request())
        assert read_status(kept) == 200
        for _ in range(20):
            opened.enter_context(connect(port))
        kept.sendall(request())
        assert read_status(kept) == 200


def test_closed_connections_are_reported_at_most_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    opened = OpenConnections(ConnectionLimits(), parse_proxies([]))
    for reason in ("sent invalid HTTP", "sent invalid HTTP", "made room for others"):
        opened.count_closed(reason)
    opened.report()
    opened.report()
    assert capsys.readouterr().err.split("\n") == [
        "connections closed early: 1 sent invalid HTTP",
        "connections closed early: 1 sent invalid HTTP, 1 made room for others",
        "",
    ]
