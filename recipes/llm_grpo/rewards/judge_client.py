"""Asks a model at an OpenAI-compatible address to rate answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import threading
import time
import urllib.request
from functools import partial
from typing import Any

from overtone.finetune.addresses import HIDDEN, RemoteAddress
from overtone.finetune.errors import UserError
from overtone.finetune.storage import strict_json
from overtone.finetune.storage.remote import refuse_link_local
from overtone.recipes.llm_grpo.options import Judge
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError, RewardTimeoutError

LARGEST_REPLY = 2**20
"""Bytes."""
HIGHEST = 10.0
"""Best rating."""
RATING = re.compile(r"(?<![\w.,/])[-+−]?\d+(?:\.\d+)?(?:\s*/\s*10|\s+out\s+of\s+10)?(?![\w%/]|[.,]\d|\s*/)(?!\s+out\s+of\b)", re.ASCII)
"""A rating in a reply, with its scale."""
KEY = re.compile("[!-~]+")


class JudgeClient:
    """Rates answers by the judge of the options, from any thread. Owns the key, which no error message contains."""

    def __init__(self, judge: Judge) -> None:
        """Raises `UserError` without the variable of the key, for a key that no header can contain, and for a link-local address."""
        self._judge, self._key = judge, _read_key(judge.key_variable)
        self._address = f"{judge.url}/chat/completions"
        refuse_link_local(RemoteAddress(self._address))

    def rate(self, prompt: str, answer: str, expected: object) -> float:
        """Return the rating of an answer from 0 to 1. `expected`: the row's `answer`, or None. Raises `RewardError` without one in time."""
        reference = "" if expected is None else f"\n\nExpected answer:\n{expected}"
        messages = [
            {"role": "system", "content": self._judge.instruction},
            {"role": "user", "content": f"Task:\n{prompt}{reference}\n\nAnswer:\n{answer}"},
        ]
        body = json.dumps({"model": self._judge.model, "messages": messages, "temperature": 0, "max_tokens": 64}).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self._key}"} if self._key else {})}
        request = urllib.request.Request(self._address, body, headers)  # noqa: S310 - `Judge.url` is of http or https
        refuse_link_local(RemoteAddress(self._address))  # the host may have another address by now
        try:
            reply = strict_json.loads(_read(request, self._judge.seconds))
            return read_rating(str(reply["choices"][0]["message"]["content"]))
        except (OSError, ValueError, http.client.HTTPException) as error:
            kind = RewardTimeoutError if isinstance(error, TimeoutError) else RewardError
            raise kind(self._hide_key(f"{type(error).__name__}: {' '.join(str(error).split())}")[:200]) from None
        except (KeyError, IndexError, TypeError):
            raise RewardError("the reply has no choices[0].message.content") from None
        except RewardError as error:
            raise RewardError(self._hide_key(str(error))[:200]) from None

    def _hide_key(self, text: str) -> str:
        return text.replace(self._key, HIDDEN) if self._key else text


def read_rating(text: str) -> float:
    """Return the only number of a reply, from 0 to 10, divided by 10; `/10` or `out of 10` may follow it. Raises `RewardError` for any
    other reply."""
    found = RATING.findall(text)
    if len(found) == 1 and not re.search(r"\d", RATING.sub("", text)):
        rating = float(re.split(r"\s*/|\s+out", found[0])[0].replace("−", "-"))
        if 0 <= rating <= HIGHEST:
            return rating / HIGHEST
    raise RewardError(f"the reply is not one number from 0 to {HIGHEST:g}: {text!r}")


def _read_key(variable: str | None) -> str:
    """The key; empty if none is sent."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()  # a line break at its end is usual where it comes from a file
    if not KEY.fullmatch(key):
        found = "is not set" if not key else "contains characters that are in no key"
        raise UserError(f"options.rewards.judge.key_variable: the environment variable {variable} {found}; set it to the key of the judge")
    return key


def _read(request: urllib.request.Request, seconds: float) -> bytes:
    """The body of the response. Raises `OSError`, `ValueError` or `HTTPException` if it does not come in time, or is too large."""
    deadline, found = time.monotonic() + seconds, bytearray()
    try:
        with contextlib.closing(_TimeLimit(seconds)) as limit:
            opener = urllib.request.build_opener(_WithoutRedirects, _Handler(limit))
            with opener.open(request, timeout=seconds) as response:
                while part := response.read1(2**16):
                    found += part
                    if len(found) > LARGEST_REPLY:
                        raise ValueError(f"the reply has more than {LARGEST_REPLY:,} bytes")
    except (OSError, http.client.HTTPException):
        if time.monotonic() < deadline:
            raise
    if time.monotonic() > deadline:  # an end without an error may be that of the closed connection
        raise TimeoutError(f"the reply had not ended after {seconds:g} s")
    return bytes(found)


class _TimeLimit:
    """Shuts connections down after a time, which ends whatever waits for them: the limit of urllib is that of each read, so each byte
    begins it again."""

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        self._over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def add(self, connected: socket.socket) -> None:
        """Include a connection."""
        self._sockets.append(connected.dup())
        if self._over:
            self._end()

    def close(self) -> None:
        """End the limit."""
        self._timer.cancel()
        for each in self._sockets:
            each.close()

    def _end(self) -> None:
        self._over = True
        for each in self._sockets:
            with contextlib.suppress(OSError):  # closed by the server, or by `close`
                each.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    """Has a time limit, also for a TLS handshake and for headers."""

    limit: _TimeLimit

    def connect(self) -> None:
        """Connect to the server."""
        super().connect()
        self.limit.add(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """As `_Connection`, whose method it calls for the connection below TLS."""


def _connect(kind: type[_Connection], limit: _TimeLimit, host: str, **settings: Any) -> _Connection:
    connection = kind(host, **settings)
    connection.limit = limit
    return connection


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections with a time limit."""

    def __init__(self, limit: _TimeLimit) -> None:
        super().__init__()
        self._limit = limit

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection without TLS."""
        return self.do_open(partial(_connect, _Connection, self._limit), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection with TLS."""
        return self.do_open(partial(_connect, _SecureConnection, self._limit), request)


class _WithoutRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: one would send the key to another address."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none."""
