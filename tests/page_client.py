"""A gradio page as its own script calls it, over the routes that are open to a browser."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import loopback

CLOSED_PAGES = ("/config", "/monitoring", "/login", "/docs", "/openapi.json", "/manifest.json", "/svelte/svelte.js", "/assets/../routes.py")
"""Paths that gradio answers by itself, and no page of this project needs."""
CLOSED_CALLS = ("dev/reload", "info", "app_id", "token", "proxy=http://attacker.example/")
"""The same, under /gradio_api/."""


@dataclass
class PageClient:
    """One open page."""

    url: str
    session: str = field(default_factory=lambda: secrets.token_hex(5))

    def functions(self) -> dict[str, int]:
        """Number by name, as the page holds them."""
        page = loopback.ask(f"{self.url}/")[2].decode()
        found = re.search(r"window\.gradio_config = (\{.*?\});\s*(?:window|</script>)", page, re.DOTALL)
        assert found is not None
        return {one["api_name"]: one["id"] for one in json.loads(found[1])["dependencies"]}

    def join(self, name: str | int, *values: Any) -> tuple[int, dict[str, Any]]:
        """Status and answer."""
        number = name if isinstance(name, int) else self.functions()[name]
        body = json.dumps({"data": values, "fn_index": number, "trigger_id": None, "session_hash": self.session})
        status, _, answer = loopback.ask(f"{self.url}/gradio_api/queue/join?", body.encode(), Content_Type="application/json")
        return status, json.loads(answer)

    def events(self) -> list[dict[str, Any]]:
        """All that the server sends until the calls have ended."""
        status, _, answer = loopback.ask(f"{self.url}/gradio_api/queue/data?session_hash={self.session}")
        assert status == 200, answer
        return [json.loads(line.removeprefix("data: ")) for line in answer.decode().splitlines() if line.startswith("data: ")]

    def call(self, name: str, *values: Any) -> dict[str, Any]:
        """What came of a call: `success`, and `output`."""
        status, answer = self.join(name, *values)
        assert status == 200, answer
        (done,) = [event for event in self.events() if event["msg"] == "process_completed"]
        return done

    def predict(self, name: str, *values: Any) -> list[Any]:
        """The values that a call gives. Fails if it does."""
        done = self.call(name, *values)
        assert done["success"], done
        return done["output"]["data"]

    def upload(self, content: bytes, name: str = "clip.flac") -> tuple[int, Any]:
        """Status and answer: the file as a value of a call, or why not."""
        head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\nContent-Type: audio/flac\r\n\r\n'
        form = head.encode("utf-8", "surrogateescape") + content + b"\r\n--x--\r\n"
        status, _, answer = loopback.ask(f"{self.url}/gradio_api/upload", form, Content_Type="multipart/form-data; boundary=x")
        found = json.loads(answer)
        return status, {"path": found[0], "meta": {"_type": "gradio.FileData"}} if status == 200 else found

    def uploaded(self, file: Path) -> dict[str, Any]:
        status, value = self.upload(file.read_bytes(), file.name)
        assert status == 200, value
        return value
