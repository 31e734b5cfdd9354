"""Address, security headers and temporary files of the page servers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fastapi import FastAPI

from overtone.finetune.errors import UserError
from overtone.finetune.pages import web_server
from overtone.finetune.pages.client_addresses import NO_PROXIES
from overtone.finetune.pages.connection_limits import ConnectionLimits, OpenConnections
from tests.house import PACKAGES

ROOT = Path(__file__).resolve().parents[3]


def test_a_taken_port_and_a_foreign_address_are_refused() -> None:
    with socket.socket() as taken:
        taken.bind((web_server.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"--port {port} cannot be opened .*; choose another, as --port {port + 1}"):
            web_server.require_free_port(port)
    web_server.require_free_port(port)
    for host in ("no.such.host.invalid", "203.0.113.1"):
        with pytest.raises(UserError, match=f"--host {host} is not an address of this machine"):
            web_server.require_free_port(port, host)


def test_every_response_has_the_security_headers() -> None:
    sent: list[dict] = []

    async def app(scope: dict, receive: object, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"hello"})

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(web_server.add_security_headers(app)({"type": "http"}, None, send))
    assert sent[0]["headers"] == [(b"x-own", b"1"), *web_server.HEADERS]
    assert sent[1] == {"type": "http.response.body", "body": b"hello"}
    assert not re.search(r"http|unsafe|\*", web_server.POLICY) and "frame-ancestors 'none'" in web_server.POLICY


def test_a_response_keeps_a_policy_of_its_own() -> None:
    sent: list[dict] = []

    async def app(scope: dict, receive: object, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-security-policy", b"sandbox")]})

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(web_server.add_security_headers(app)({"type": "http"}, None, send))
    assert sent[0]["headers"] == [(b"content-security-policy", b"sandbox"), *web_server.HEADERS[1:]]


def test_no_server_is_started_without_the_limits_of_connections() -> None:
    """All are configured in one place; so is a server that is added later."""
    starts = re.compile(r"uvicorn\.(Config|run)\(|H11Protocol|\bhttp\.server\b|HTTPServer|\b(create|start)_server\(|\.launch\(.*port")
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = sorted(str(path.relative_to(ROOT)) for path in sources if starts.search(path.read_text(encoding="utf-8")))
    assert found == ["finetune/pages/connection_limits.py", "finetune/pages/web_server.py"]


def test_uvicorn_reads_no_headers_of_proxies_and_opens_no_websockets() -> None:
    config = web_server.configure_server(FastAPI(), web_server.LOOPBACK, 1, OpenConnections(ConnectionLimits(), NO_PROXIES))
    config.load()
    assert not config.proxy_headers and config.ws_protocol_class is None


OWNER = """
import sys, tempfile
from pathlib import Path
from overtone.finetune.pages import web_server as web
with web.open_private_folder("overtone-test-1"):
    tempfile.NamedTemporaryFile(delete=False).write(b"left behind")
    print(tempfile.gettempdir(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_temporary_files_are_removed_when_a_signal_ends_the_process(ending: signal.Signals, tmp_path: Path) -> None:
    """Those of every library in it, at whatever point of its work it is ended."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(web_server.__file__).parents[1])}
    (tmp_path / f".overtone-test-1-{os.getuid()}.tmp-dead").mkdir()  # of one that was killed
    (tmp_path / ".overtone-test-2.tmp-other").mkdir()
    process = subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o077 == 0 and len(list(folder.iterdir())) == 1
    process.send_signal(ending)
    process.communicate(timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == [".overtone-test-2.tmp-other"]


def test_a_foreign_folder_of_the_same_name_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    handled = (signal.SIGTERM, signal.SIGINT)
    before, variable = [signal.getsignal(one) for one in handled], os.environ.get("TMPDIR")
    (tmp_path / "precious").mkdir()
    link = tmp_path / f".overtone-test-1-{os.getuid()}.tmp-link"
    link.symlink_to(tmp_path / "precious")
    with web_server.open_private_folder("overtone-test-1") as folder:
        assert tempfile.gettempdir() == str(folder) == os.environ["TMPDIR"]
    assert (tmp_path / "precious").is_dir() and link.is_symlink() and not folder.exists()
    assert tempfile.gettempdir() == str(tmp_path) and [signal.getsignal(one) for one in handled] == before
    assert os.environ.get("TMPDIR") == variable
