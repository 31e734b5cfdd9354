"""Framing of HTTP/1.1 requests, stricter than h11: a request that a proxy in front could read in another way than this server is
refused."""

from __future__ import annotations

import re

import h11

LARGEST_HEAD = 2**15
"""Maximum bytes of a request line with its headers."""
MOST_HEADERS = 100


class StrictConnection(h11.Connection):
    """The server's side of a connection. `refusal` holds the status and the reason once `next_event` has raised `RemoteProtocolError`."""

    refusal = (400, "the request is not valid HTTP/1.1")

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._refuse_if(*find_head_error(self.trailing_data[0]))
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = (error.error_status_hint, self.refusal[1])
            raise
        if isinstance(event, h11.Request):
            self._refuse_if(*find_request_error(event))
        return event

    def _refuse_if(self, status: int, reason: str) -> None:
        if status:
            self.refusal = (status, reason)
            raise h11.RemoteProtocolError(reason, status)


def find_head_error(received: bytes) -> tuple[int, str]:
    """Return (status, reason) for the bytes received of a request line with headers, perhaps not all; (0, "") if nothing is wrong with
    them."""
    end = re.search(rb"\n\r?\n", received)
    head = received[: end.end()] if end else received
    if len(head) > LARGEST_HEAD:
        return 431, f"the headers of a request may have {LARGEST_HEAD} bytes"
    if re.search(rb"(?<!\r)\n", head):
        return 400, "a line of the headers does not end with CR LF"
    if re.search(rb"\n[ \t]", head):
        return 400, "a header extends over several lines"
    if len(re.findall(rb"\n(?:content-length|transfer-encoding)[ \t]*:", head, re.IGNORECASE)) > 1:
        return 400, "the length of the body is given twice; send either content-length or transfer-encoding, once"
    return 0, ""


def find_request_error(request: h11.Request) -> tuple[int, str]:
    """Return (status, reason) for a request that h11 accepts; (0, "") if nothing is wrong with it."""
    headers = dict(request.headers)
    if request.http_version not in (b"1.0", b"1.1"):
        return 505, "the version of HTTP must be 1.1"
    if len(list(request.headers)) > MOST_HEADERS:
        return 431, f"a request may have {MOST_HEADERS} headers"
    if not request.target.startswith(b"/"):
        return 400, "the target of a request must be a path"
    if request.http_version == b"1.0" and b"transfer-encoding" in headers:
        return 400, "transfer-encoding needs HTTP/1.1"
    if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
        return 417, "the only accepted value of expect is 100-continue"
    return 0, ""
