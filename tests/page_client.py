"""The page of `serve`, as its own script calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import loopback

CLOSED = (
    "/config",
    "/docs",
    "/openapi.json",
    "/redoc",
    "/gradio_api/info",
    "/assets/",
    "/assets/page.html",
    "/assets/../page.css",
    "/page.js",
)
"""Paths that a page server might answer by mistake."""
CLIP = "the reference clip"
SETTINGS = {"clip": None, "clip_text": "", "language": None, "temperature": 0.9, "greedy": False, "seed": 0}


def make_body(text: str, *sides: tuple[str, str], **settings: Any) -> bytes:
    """The body of `POST /speak`. `sides`: (model, voice) of each."""
    chosen = [{"model": model, "voice": voice} for model, voice in sides]
    return json.dumps({"text": text, "sides": chosen, **SETTINGS, **settings}).encode()


def read_updates(answer: bytes) -> list[dict[str, Any]]:
    """The updates of a response: `side` and `html`, or `error`."""
    return [json.loads(line) for line in answer.splitlines()]


def speak(url: str, text: str, *sides: tuple[str, str], **settings: Any) -> list[str]:
    """The last HTML of each side. Fails if there is none."""
    status, _, answer = loopback.ask(f"{url}/speak", make_body(text, *sides, **settings), Content_Type="application/json")
    assert status == 200, answer
    updates = read_updates(answer)
    return [[one["html"] for one in updates if one["side"] == side][-1] for side in range(len(sides))]


def upload(url: str, content: bytes, name: str = "clip.flac") -> tuple[int, Any]:
    """Status and answer: the clip for `POST /speak`, or why not."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\nContent-Type: audio/flac\r\n\r\n'
    form = head.encode("utf-8", "surrogateescape") + content + b"\r\n--x--\r\n"
    status, _, answer = loopback.ask(f"{url}/clip", form, Content_Type="multipart/form-data; boundary=x")
    found = json.loads(answer)
    return status, found["clip"] if status == 200 else found


def upload_file(url: str, file: Path) -> str:
    status, clip = upload(url, file.read_bytes(), file.name)
    assert status == 200, clip
    return str(clip)
