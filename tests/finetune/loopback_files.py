"""A web server on loopback that sends files as real servers do: with or without versions, lengths, compression and access control."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class FileServer:
    """What a server holds and how it answers. `requests`: method and target of each request."""

    files: dict[str, bytes]
    etag: str = ""
    """strong, weak, or none."""
    last_modified: str = ""
    length: bool = True
    compress: bool = False
    head: bool = True
    ranges: bool = False
    login: str = ""
    """user:password that each request must send."""
    query: str = ""
    """That each request must have."""
    redirects: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Bytes after which the connection ends."""
    requests: list[str] = field(default_factory=list)
    place: str = ""
    """host:port."""


def make_handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            server.requests.append(f"{self.command} {self.path}")
            target = urlsplit(self.path)
            expected = "Basic " + base64.b64encode(server.login.encode()).decode()
            if server.login and self.headers.get("Authorization") != expected:
                return self.refuse(401)
            if server.query and target.query != server.query:
                return self.refuse(403)
            if self.command == "HEAD" and not server.head:
                return self.refuse(405)
            if location := server.redirects.get(target.path):
                self.send_response(302)
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            if target.path.lstrip("/") not in server.files:
                return self.refuse(404)
            return self.send_file(server.files[target.path.lstrip("/")], with_body)

        def send_file(self, content: bytes, with_body: bool) -> None:
            digest = hashlib.sha256(content).hexdigest()[:8]
            headers = {
                "ETag": {"strong": f'"{digest}"', "weak": f'W/"{digest}"'}.get(server.etag, ""),
                "Last-Modified": server.last_modified,
            }
            if server.compress:
                content, headers["Content-Encoding"] = gzip.compress(content, mtime=0), "gzip"
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if server.ranges else None
            if wanted:
                headers["Content-Range"] = f"bytes {wanted[1]}-{wanted[2]}/{len(content)}"
                content = content[int(wanted[1]) : int(wanted[2]) + 1]
            headers |= {"Content-Length": str(len(content))} if server.length else {"Connection": "close"}
            self.send_response(206 if wanted else 200)
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # of a client that only wants the headers
                self.wfile.write(content[: server.cut_after] if with_body else b"")
            self.close_connection = self.close_connection or not server.length or server.cut_after is not None

        def refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """The tests look at `requests`."""

    return Handler


@contextlib.contextmanager
def opened(server: FileServer) -> Iterator[FileServer]:
    """Serve until the end of the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), make_handler(server)) as listening:
        listening.daemon_threads = True
        server.place = f"127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
