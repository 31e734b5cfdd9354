"""Limits of a server's connections, enforced before the application: time for each part of a request, and how many may be open.

A connection is `held` once a request on it was admitted: with the token, if the server has one. When too many are open, those that are not
held are closed in favour of new ones, so that connections without a token never keep out a client that has it.
"""

from __future__ import annotations

import asyncio
import fcntl
import http
import socket
import struct
import sys
import termios
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from overtone.finetune.pages.client_addresses import TrustedProxies, group_address
from overtone.finetune.pages.http_framing import LARGEST_HEAD, StrictConnection
from overtone.finetune.pages.request_validation import CONNECTION
from overtone.finetune.terminal import print_diagnostic

REPORT_SECONDS = 60.0
"""Least time between two reports of closed connections."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Times are in seconds."""

    idle: float = 10.0
    """Time until the first byte of a request."""
    head: float = 10.0
    """Time from the first byte of a request to the end of its headers."""
    body: float = 60.0
    """Time from the end of the headers to the end of the body."""
    unread: float = 60.0
    """Time in which a client must read the rest of a response that has no room in the buffers, or `progress` bytes of it."""
    progress: int = 2**14
    linger: float = 2.0
    """Time for a client to read why its request was refused, before the connection closes."""
    total: int = 256
    """Maximum number of open connections."""
    per_address: int = 128
    """Maximum number of connections from one address (IPv6: from a /64 network), except from trusted proxies."""


class OpenConnections:
    """Owns the list of the open connections, and counts those that were closed before their end."""

    def __init__(self, limits: ConnectionLimits, proxies: TrustedProxies) -> None:
        self.limits = limits
        self._proxies = proxies
        self._groups: dict[LimitedHttpProtocol, str] = {}
        """Connection → group of its address, the oldest first."""
        self._closed, self._reported = Counter[str](), 0.0

    def add(self, connection: LimitedHttpProtocol, address: str) -> None:
        """Add a new connection, and close others that are not held if there are too many."""
        group = "" if address in self._proxies else group_address(address)
        self._groups[connection] = group
        if group and sum(one == group for one in self._groups.values()) > self.limits.per_address:
            self._make_room(connection, [one for one, of in self._groups.items() if of == group])
        if len(self._groups) > self.limits.total:
            self._make_room(connection, list(self._groups))

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._groups)

    def remove(self, connection: LimitedHttpProtocol) -> None:
        self._groups.pop(connection, None)

    def has_room_to_hold(self, connection: LimitedHttpProtocol) -> bool:
        """Return whether one more connection may be held. An eighth of each limit is for connections that have not shown a token yet."""
        group = self._groups.get(connection)
        held = Counter(of for one, of in self._groups.items() if one.held)
        room_of_group = not group or held[group] < self.limits.per_address - max(1, self.limits.per_address // 8)
        return room_of_group and held.total() < self.limits.total - max(1, self.limits.total // 8)

    def _make_room(self, new: LimitedHttpProtocol, candidates: list[LimitedHttpProtocol]) -> None:
        """Close one connection that is not held: the oldest one of the address that has most of them."""
        free = [one for one in candidates if not one.held and one is not new] or [new]
        numbers = Counter(self._groups[one] for one in free)
        chosen = max(free, key=lambda one: numbers[self._groups[one]])
        self.remove(chosen)
        self.count_closed("made room for others")
        chosen.dismiss()

    def count_closed(self, reason: str) -> None:
        """Count a connection that was closed before its end, and report the counts at most once a minute."""
        self._closed[reason] += 1
        if time.monotonic() >= self._reported + REPORT_SECONDS or not self._reported:
            self.report()

    def report(self) -> None:
        """Print the counts since the last report."""
        if self._closed:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._closed.most_common())
            print_diagnostic(f"connections closed early: {reasons}")
            self._closed.clear()
            self._reported = time.monotonic()


class ConnectionPhase(Enum):
    """The event that a connection waits for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    RESPONSE = auto()
    """The application, which has its own deadlines; a stream may last."""
    DRAINING = auto()
    """The rest of a body whose request was answered already."""
    CLOSING = auto()
    """The client, which reads why its request was refused; what it sends is dropped."""


class LimitedHttpProtocol(H11Protocol):
    """One connection of uvicorn's server, with limits."""

    def __init__(
        self,
        opened: OpenConnections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self.conn = self._strict = StrictConnection(h11.SERVER, LARGEST_HEAD)
        self.held = False
        self._opened, self._limits = opened, opened.limits
        self._phase = ConnectionPhase.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def hold(self) -> bool:
        """Hold this connection, on which a request was admitted. Returns False if too many are held."""
        self.held = self.held or self._opened.has_room_to_hold(self)
        return self.held

    def dismiss(self) -> None:
        """Close the connection at once. A client that waits for a response is sent one that says to try again."""
        if self.cycle is None or self._phase in (ConnectionPhase.HEAD, ConnectionPhase.BODY):
            self._refuse(503, "too many connections are open; try again", (b"retry-after", b"1"))
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` then says exactly when the client does not read
        self._enter(ConnectionPhase.IDLE)
        self._opened.add(self, self.client[0] if self.client else "")

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.remove(self)
        for timer in (self._timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase is not ConnectionPhase.CLOSING:
            super().data_received(data)
            self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 of uvicorn: the same for every error of h11
        self._opened.count_closed("sent invalid HTTP")
        self._refuse(*self._strict.refusal)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self._limits.unread, self._check_reader, count_unread(self.transport))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def _check_reader(self, before: int) -> None:
        unread = count_unread(self.transport)
        if before - unread < self._limits.progress:
            self._opened.count_closed("did not read their response")
            # The kernel must not keep its buffered bytes for such a client either.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self._unread_timer = self.loop.call_later(self._limits.unread, self._check_reader, unread)

    def _follow(self) -> None:
        """Enter the phase that h11's state means. A client that sends byte by byte stays in its phase, whose time is not extended."""
        if self._phase is ConnectionPhase.CLOSING or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            phase = ConnectionPhase.HEAD if self.conn.trailing_data[0] else ConnectionPhase.IDLE
        elif self.conn.their_state is h11.SEND_BODY:
            phase = ConnectionPhase.DRAINING if self.conn.our_state in (h11.DONE, h11.MUST_CLOSE) else ConnectionPhase.BODY
        else:
            phase = ConnectionPhase.RESPONSE
        if phase is not self._phase:
            self._enter(phase)

    def _enter(self, phase: ConnectionPhase) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._phase, limits = phase, self._limits
        seconds = {
            ConnectionPhase.IDLE: limits.idle,
            ConnectionPhase.HEAD: limits.head,
            ConnectionPhase.BODY: limits.body,
            ConnectionPhase.DRAINING: limits.linger,
            ConnectionPhase.CLOSING: limits.linger,
        }.get(phase)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire, seconds)

    def _expire(self, seconds: float) -> None:
        if self._phase is ConnectionPhase.IDLE:
            self.transport.close()  # usual for a browser, which opens connections that it may need
        elif self._phase is ConnectionPhase.BODY and self.flow.read_paused:
            self._enter(ConnectionPhase.BODY)  # the application has not read the received bytes
        elif self._phase in (ConnectionPhase.HEAD, ConnectionPhase.BODY):
            part = "headers" if self._phase is ConnectionPhase.HEAD else "body"
            self._opened.count_closed(f"sent their {part} too slowly")
            self._refuse(408, f"the {part} did not arrive within {seconds:g} s")
        else:
            self.transport.abort()

    def _refuse(self, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer in place of the application and close; the application sees that the client disconnected."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has begun
            self.transport.abort()
            return
        text = reason.encode()
        plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text)), (b"connection", b"close")]
        response = h11.Response(status_code=status, headers=[*plain, *headers], reason=http.HTTPStatus(status).phrase.encode())
        for event in (response, h11.Data(data=text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        # Only the sending side is closed: if bytes of the request were not read yet, closing both would discard the response.
        self.transport.write_eof()
        self._enter(ConnectionPhase.CLOSING)
        self.flow.resume_reading()


def count_unread(transport: asyncio.Transport) -> int:
    """Return the bytes that the client's machine has not received yet: in this process, and in the kernel's buffer, which may have
    megabytes."""
    in_kernel = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)
