"""A real S3 server on this machine (moto's), and a line to it that can be cut at one request."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests import loopback

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
BUCKET = "mine"
HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=any",
    "Content-Type": "application/octet-stream",
}
"""The server checks no signature, but what comes without one may read nothing; and it takes what is of no type for a form."""


class Server:
    """Its objects are in its memory, and go when it ends."""

    def __init__(self, port: int) -> None:
        self.port, self._process = port, subprocess.Popen([BIN / "moto_server", "-p", str(port)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        self.put("", b"")

    def put(self, name: str, content: bytes) -> None:
        self._ask(name, content)

    def get(self, name: str) -> bytes:
        return self._ask(name)

    def _ask(self, name: str, content: bytes | None = None) -> bytes:
        address, method = f"http://127.0.0.1:{self.port}/{BUCKET}/{name}", "GET" if content is None else "PUT"
        with urllib.request.urlopen(urllib.request.Request(address, content, HEADERS, method=method), timeout=60) as answer:
            return bytes(answer.read())

    def names(self, prefix: str = "") -> list[str]:
        listed = self.get(f"?list-type=2&prefix={prefix}").decode()
        return re.findall(r"<Key>([^<]*)</Key>", listed)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def served() -> Iterator[Server]:
    server = Server(loopback.free_port())
    try:
        yield server
    finally:
        server.end()


def start(port: int, *arguments: object) -> subprocess.Popen[str]:
    """`python -m finetune …` with its S3 at `port`."""
    own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    return subprocess.Popen(
        [sys.executable, "-m", "finetune", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **own, "AWS_DEFAULT_REGION": "us-east-1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(port: int, *arguments: object, code: int = 0) -> str:
    """To its end; what it printed."""
    process = start(port, *arguments)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == code, said
    return said


class HeldLine:
    """Passes everything to a server but requests whose first line matches: their connection stays open, and unanswered."""

    def __init__(self, port: int, held: str) -> None:
        self._port, self._held, self.reached = port, re.compile(held.encode()), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._pass_on, args=(client, server, self._held), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, None), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, held: re.Pattern[bytes] | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if held is not None and held.match(data):
                    self.reached.set()
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
