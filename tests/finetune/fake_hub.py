"""The far side of uploads and downloads: the few endpoints of the hub that its client speaks to, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs

import pytest

TOKEN = "hf_right"
COMMIT = "0123456789" * 4
"""Of every repository."""


class Hub(ThreadingHTTPServer):
    """Repositories in memory. A token other than `TOKEN` is unknown; names that begin with `other/` are somebody else's."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, folder: Path) -> None:
        """A repository with the files of a folder."""
        self.repositories[name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def point_client_at(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client in this process use `hub`, with its cache in `home`."""
    values = {"ENDPOINT": hub.address, "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_DISABLE_XET": True, "HF_HUB_OFFLINE": False}
    for name, value in values.items():  # offline: an earlier test of this process may have imported the client in a setting without network
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    forget_sessions()
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)  # a copy, before version 1
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def forget_sessions() -> None:
    """A session that the client opened while a test had set it offline refuses every request, in later tests too."""
    from huggingface_hub.utils import _http

    forget = _http.reset_sessions if hasattr(_http, "reset_sessions") else _http.close_session  # the former before version 1
    forget()


@contextmanager
def opened() -> Iterator[Hub]:
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


class _Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._take()
        if self.path.startswith(("/api/models/", "/api/datasets/")):
            _, _, kind, owner, model, *rest = self.path.partition("?")[0].split("/")
            name = f"{owner}/{model}" if kind == "models" else f"datasets/{owner}/{model}"
            if rest[:1] == ["tree"]:
                folder = "/".join(rest[2:])
                inside = [path for path in self.server.repositories[name] if path.startswith(f"{folder}/" if folder else "")]
                above = {parent.as_posix() for path in inside for parent in PurePosixPath(path).parents} - {".", folder}
                folders = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(above)]
                return self._give(200, [*folders, *(self._describe(name, path) for path in inside)])
            held = self.server.repositories.get(name)
            listed = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in held or ()]}
            return self._give(404, {"error": f"no {name}"}, "RepoNotFound") if held is None else self._give(200, listed)
        return self._give_file()

    def do_HEAD(self) -> None:
        self._take()
        self._give_file()

    def _give_file(self) -> None:
        """`/OWNER/NAME/resolve/REVISION/PATH`."""
        name, _, rest = self.path.lstrip("/").partition("/resolve/")
        data = self.server.repositories.get(name, {}).get(rest.partition("/")[2])
        if data is None:
            return self._give(404, {"error": f"no {self.path}"}, "EntryNotFound")
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
        return None

    def do_POST(self) -> None:
        body = self._take()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._give(401, {"error": "Invalid credentials"})
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if self.path == "/api/validate-yaml":
            return self._give(200, {"errors": [], "warnings": []})
        if self.path.startswith("/api/datasets/"):
            name, wanted = "/".join(self.path.split("/")[2:5]), parse_qs(body.decode())["paths"]
            return self._give(200, [self._describe(name, path) for path in wanted if path in self.server.repositories[name]])
        name, _, action = self.path.removeprefix("/api/models/").partition("/main")[0].rpartition("/")
        if action == "preupload":
            asked = json.loads(body)["files"]
            return self._give(200, {"files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in asked]})
        if action == "commit":
            return self._commit(name, [json.loads(line) for line in body.splitlines()])
        return self._give(404, {"error": self.path})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name.startswith("other/"):
            return self._give(403, {"error": "You don't have the rights to create a model under the namespace other"})
        self.server.repositories.setdefault(name, {})
        self.server.private.setdefault(name, bool(asked.get("private")) or asked.get("visibility") == "private")
        return self._give(200, {"url": f"{self.server.address}/{name}", "name": name, "id": name})

    def _describe(self, name: str, path: str) -> dict[str, Any]:
        """A file as the hub lists it."""
        data = self.server.repositories[name][path]
        return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest()}

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["key"] == "file":
                self.server.repositories[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        oid = "0" * 40
        self._give(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{name}/commit/{oid}", "hookOutput": ""})

    def _take(self) -> bytes:
        self.server.asked.append(f"{self.command} {self.path}")
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _give(self, status: int, value: Any, code: str = "") -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test looks at `asked`."""
