"""Requests to an app in this process, with bytes that no HTTP client would send."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

HOME = (b"host", b"127.0.0.1:7861")
JSON = (b"content-type", b"application/json")

ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(alphabet=st.characters(), max_size=9),
        st.text(alphabet=st.characters(categories=["Cs"]), max_size=2),  # half characters
        st.sampled_from(["tuned", "anna", "mp3", "wav", "auto", "as trained", -1, 10**30, 2**64, "/etc/passwd"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "path", "url", "meta", "\ud800"]), inner, max_size=3)
    ),
    max_leaves=5,
)
"""What JSON can hold, and Python's reader of it accepts."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def ask(app: Any, method: str, path: str, body: bytes | list[bytes | None] = b"", headers: Any = (HOME,), query: bytes = b"") -> Answer:
    """Raises what the app raises. The client goes away once its body is sent and a first part of the answer has come.

    `body`: whole, or in pieces; None for a piece that never comes.
    """
    return asyncio.run(asked(app, method, path, body, headers, query))


async def asked(
    app: Any,
    method: str,
    path: str,
    body: bytes | list[bytes | None] = b"",
    headers: Any = (HOME,),
    query: bytes = b"",
    patient: bool = False,
) -> Answer:
    """The same in a loop that runs. `patient`: the client stays until the answer has ended."""
    pieces: list[bytes | None] = [body] if isinstance(body, bytes) else list(body)
    begun = asyncio.Event()
    status, found, content = 0, {}, bytearray()

    async def receive() -> dict[str, Any]:
        if pieces:
            piece = pieces.pop(0)
            if piece is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, found
        if message["type"] == "http.response.start":
            status, found = message["status"], {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            content.extend(message.get("body", b""))
            if not patient:
                begun.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "root_path": "",
        "query_string": query,
        "headers": list(headers),
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 7861),
        "state": {},
    }
    await app(scope, receive, send)
    return Answer(status, found, bytes(content))


class App:
    """The server's app in one event loop, as uvicorn would run it."""

    def __init__(self, app: Any, headers: Any = (HOME, JSON)) -> None:
        """`headers`: of requests that name none."""
        self._runner, self._app, self._headers = asyncio.Runner(), app, headers
        self._lifespan = app.router.lifespan_context(app)
        self._runner.run(self._lifespan.__aenter__())

    def ask(self, method: str, path: str, body: bytes = b"", headers: Any = None, query: bytes = b"") -> Answer:
        """Raises what the app raises, and fails for an error that is the server's own."""
        return self.run(self.start(method, path, body, headers, query))

    def start(self, method: str, path: str, body: bytes = b"", headers: Any = None, query: bytes = b"") -> asyncio.Task[Answer]:
        """The same as a task of the app's loop, which `run` completes."""

        async def complete() -> Answer:
            answer = await asyncio.wait_for(asked(self._app, method, path, body, headers or self._headers, query, path == "/speak"), 60)
            assert answer.status < 500, answer
            return answer

        return self._runner.get_loop().create_task(complete())

    def run(self, work: Any) -> Any:
        """Something else in the app's loop."""
        return self._runner.get_loop().run_until_complete(work)

    def close(self) -> None:
        self._runner.run(self._lifespan.__aexit__(None, None, None))
        self._runner.close()
