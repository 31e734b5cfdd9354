"""The microphone's page needs a consent, and its lists of sentences can be read aloud."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from overtone.recipes.serving.access_control import AccessPolicy
from overtone.studio.pages.microphone_page import SENTENCES
from overtone.studio.studio_app import make_application
from overtone.studio.uploads.speaker_consent import write_consent
from tests.asgi import App
from tests.data_prep.conftest import MARKUP


def test_takes_that_are_there_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "recordings" / "me"
    folder.mkdir(parents=True)
    for name in ("take_0a.wav", "other.wav", f"take_{MARKUP}.wav"):
        (folder / name).touch()
    app = App(make_application(tmp_path, "127.0.0.1", AccessPolicy(None, local=True)))
    query = b"folder=recordings/me"
    assert b"has no speaker_consent.json" in app.ask("GET", "/voice/microphone", query=query).body
    write_consent(folder, "Ann", "own")
    page = app.ask("GET", "/voice/microphone", query=query).body.decode()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["takes"] == ["take_0a.wav", f"take_{MARKUP}.wav"] and MARKUP not in page and data["folder"] == "recordings/me"
    assert {"en", "de", "fr", "es"} <= data["lists"].keys()
    app.close()


@pytest.mark.parametrize("path", sorted(SENTENCES.glob("*.txt")), ids=lambda path: path.stem)
def test_sentences_are_different_and_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").strip().split("\n")
    assert len(lines) == len(set(lines)) >= 16 and all(30 <= len(line) <= 100 and line == line.strip() for line in lines)
    assert all(line[-1] in ".?!" and not re.search(r"[\d<>_]", line) for line in lines)
