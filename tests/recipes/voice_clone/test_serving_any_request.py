"""Random headers and fields: the whole server, page and API, answers with 4xx and never fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overtone.finetune.pages.request_validation import HEADERS
from overtone.recipes.qwen3_tts.inference.synthesizer import open_synthesizer
from overtone.recipes.serving.access_control import AccessPolicy
from overtone.recipes.speech.serving.openai_api import Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.serve_command import build_app
from overtone.recipes.speech.serving.uploaded_clips import Clips
from tests.asgi import ANYTHING, HOME, JSON, App
from tests.page_client import CLIP, make_body
from tests.recipes.speech.serving.test_uploaded_clips import HeldDecoder

SECRET = "0123456789abcdef"
TOKEN = (b"authorization", f"Bearer {SECRET}".encode())
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clips]:
    clips = Clips(tmp_path_factory.mktemp("any") / "clips")
    yield clips
    clips.close()


@pytest.fixture(scope="module")
def app(fresh: Any, export: Any, clips: Clips, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    tuned = export(fresh, "base", tmp_path_factory.mktemp("model") / "tuned")
    speech = SpeechQueue({"tuned": open_synthesizer(tuned)}, room=2)
    app = App(build_app(speech, Limits(chars=50, seconds=0.2), AccessPolicy(SECRET, local=True), clips), (HOME, TOKEN, JSON))
    yield app
    app.close()
    speech.close()


def test_other_requests_are_answered_while_a_clip_is_decoded(
    app: App, clips: Clips, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDecoder(tmp_path)
    monkeypatch.setattr(clips, "_decoder", held)
    body = make_body("Late.", ("tuned", CLIP), clip=str(clips.keep(b"x", "a.wav")))
    cloning = app.start("POST", "/speak", body)
    assert app.run(asyncio.to_thread(held.begun.wait, 60))
    speech = {"model": "tuned", "voice": "anna", "input": "Late.", "response_format": "pcm"}
    assert app.ask("GET", "/").status == 200
    assert app.ask("POST", "/v1/audio/speech", json.dumps(speech).encode()).status == 200
    assert not cloning.done()
    held.go.set()  # only now does the decoder answer
    answer = app.run(cloning)
    assert answer.status == 400 and b"as the test says" in answer.body


def test_a_browser_takes_turns_by_its_address(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, speak = list[str](), SpeechQueue.speak

    def watched(queue: SpeechQueue, model: str, request: Any, sampling: Any, client: str = "") -> Any:
        seen.append(client)
        return speak(queue, model, request, sampling, client)

    monkeypatch.setattr(SpeechQueue, "speak", watched)
    assert b"<audio" in app.ask("POST", "/speak", make_body("Late.", ("tuned", "anna"))).body
    assert seen == ["127.0.0.1"]


FIELDS = st.sampled_from(["model", "voice", "input", "seed", "speed", "language", "instructions", "x"])
CALLS = st.sampled_from(["text", "sides", "clip", "clip_text", "language", "temperature", "greedy", "seed", "x"])
NAMES = st.sampled_from([*sorted(name.encode() for name in HEADERS), b"sec-fetch-site", b"cookie", b"x-forwarded-host", b"x-direct-url"])
VALUES = st.binary(max_size=9) | st.sampled_from(
    [b"[", b"http://[", b"Basic \xe9", b"bytes=1-2-3", b"bytes=0-\xb2", b"multipart/form-data"]
)
PLACES = ["/", "/assets/page.css", "/assets/x.js", "/favicon.ico", "/v1/models", "/v1/models/x", "/monitoring"]
POSTS = ["/v1/audio/speech", "/speak", "/clip"]


@FEW
@given(headers=st.lists(st.tuples(NAMES, VALUES), max_size=3), place=st.sampled_from(PLACES + POSTS), query=st.binary(max_size=9))
def test_any_headers_get_an_answer(headers: list[tuple[bytes, bytes]], place: str, query: bytes, app: App) -> None:
    own = {name for name, _ in headers}
    usual = [one for one in (HOME, TOKEN, JSON) if one[0] not in own]
    app.ask("POST" if place in POSTS else "GET", place, b"{}" if place in POSTS else b"", [*usual, *headers], query)


@FEW
@given(fields=st.dictionaries(FIELDS, ANYTHING, max_size=3))
def test_any_api_fields_get_an_answer(fields: dict[str, Any], app: App) -> None:
    body = json.dumps({"model": "tuned", "voice": "anna", "input": "Late.", "response_format": "pcm"} | fields)
    app.ask("POST", "/v1/audio/speech", body.encode())


@FEW
@given(
    fields=st.dictionaries(CALLS, ANYTHING, max_size=2),
    side=st.dictionaries(st.sampled_from(["model", "voice", "x"]), ANYTHING, max_size=1),
)
def test_any_page_fields_get_an_answer(fields: dict[str, Any], side: dict[str, Any], app: App) -> None:
    """And what a call does in the end is an answer too: no connection that breaks off."""
    sides = {"sides": [{"model": "tuned", "voice": "anna", **side}]}
    body = json.loads(make_body("Late.", ("tuned", "anna"))) | sides | fields
    answer = app.ask("POST", "/speak", json.dumps(body).encode())
    assert answer.status != 200 or b"<audio" in answer.body


@pytest.mark.parametrize("body", [b"\xff", b"{", b"[" * 20_000, b"NaN", b"1" * 5000, b'"\\ud800"', b"[1]", b"null", b""])
def test_invalid_bodies_are_refused(body: bytes, app: App) -> None:
    for place in POSTS[:-1]:
        assert app.ask("POST", place, body).status == 400


def test_a_valid_request_is_still_answered(app: App) -> None:
    """After all of these."""
    body = {"model": "tuned", "voice": "anna", "input": "Late.", "response_format": "pcm"}
    assert app.ask("POST", "/v1/audio/speech", json.dumps(body).encode()).status == 200
    assert app.ask("GET", "/").status == 200
