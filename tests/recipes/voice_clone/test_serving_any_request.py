"""Random headers and fields: the whole server, page and API, answers with 4xx and never fails."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overtone.finetune.pages.request_validation import HEADERS
from overtone.recipes.serving.access_control import AccessPolicy
from overtone.recipes.speech.serving.openai_api import Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.serve_command import build_app
from overtone.recipes.speech.serving.text_to_speech_page import CLIP, NOBODY
from overtone.recipes.speech.serving.uploaded_clips import Clips
from overtone.recipes.voice_clone.inference.synthesizer import open_synthesizer
from tests.asgi import ANYTHING, HOME, JSON, App
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(clips.keep(b"", "").parents[2]))
        app = App(
            build_app(speech, Limits(chars=50, seconds=0.2), AccessPolicy(SECRET, local=True), clips),
            (HOME, TOKEN, JSON),
        )
        yield app
        app.close()
    speech.close()


def test_other_requests_are_answered_while_a_clip_is_decoded(
    app: App, clips: Clips, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDecoder(tmp_path)
    monkeypatch.setattr(clips, "_decoder", held)
    clip = {"path": str(clips.keep(b"x", "a.wav")), "meta": {"_type": "gradio.FileData"}}
    data = ["Late.", "tuned", CLIP, NOBODY, None, clip, "", "as trained", 0.9, False, 0]
    call = {"data": data, "fn_index": 2, "session_hash": "clip", "trigger_id": None}
    assert app.ask("POST", "/gradio_api/queue/join", json.dumps(call).encode()).status == 200
    assert app.run(asyncio.to_thread(held.begun.wait, 60))
    speech = {"model": "tuned", "voice": "anna", "input": "Late.", "response_format": "pcm"}
    assert app.ask("GET", "/").status == 200
    assert app.ask("POST", "/v1/audio/speech", json.dumps(speech).encode()).status == 200
    held.go.set()  # only now does the decoder answer
    assert b"as the test says" in app.ask("GET", "/gradio_api/queue/data", query=b"session_hash=clip").body


def test_a_browser_takes_turns_by_its_address(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, speak = list[str](), SpeechQueue.speak

    def watched(queue: SpeechQueue, model: str, request: Any, sampling: Any, client: str = "") -> Any:
        seen.append(client)
        return speak(queue, model, request, sampling, client)

    monkeypatch.setattr(SpeechQueue, "speak", watched)
    data = ["Late.", "tuned", "anna", NOBODY, None, None, "", "as trained", 0.9, False, 0]
    call = {"data": data, "fn_index": 2, "session_hash": "address", "trigger_id": None}
    assert app.ask("POST", "/gradio_api/queue/join", json.dumps(call).encode()).status == 200
    assert b"<audio" in app.ask("GET", "/gradio_api/queue/data", query=b"session_hash=address").body
    assert seen == ["127.0.0.1"]


FIELDS = st.sampled_from(["model", "voice", "input", "seed", "speed", "language", "instructions", "x"])
CALLS = st.sampled_from(["data", "fn_index", "session_hash", "trigger_id", "event_id", "event_data"])
NAMES = st.sampled_from([*sorted(name.encode() for name in HEADERS), b"sec-fetch-site", b"cookie", b"x-forwarded-host", b"x-direct-url"])
VALUES = st.binary(max_size=9) | st.sampled_from(
    [b"[", b"http://[", b"Basic \xe9", b"bytes=1-2-3", b"bytes=0-\xb2", b"multipart/form-data"]
)
PLACES = [
    "/",
    "/theme.css",
    "/favicon.ico",
    "/assets/x.js",
    "/static/x",
    "/v1/models",
    "/v1/models/x",
    "/gradio_api/heartbeat/x",
    "/monitoring",
]
POSTS = ["/v1/audio/speech", "/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset", "/gradio_api/upload"]


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


@pytest.mark.filterwarnings("ignore")  # gradio's own, of its own dependencies
@FEW
@given(
    values=st.dictionaries(st.integers(0, 10), ANYTHING, max_size=2),
    fields=st.dictionaries(
        st.sampled_from(["data", "fn_index", "session_hash", "trigger_id", "event_id", "event_data"]), ANYTHING, max_size=1
    ),
)
def test_any_page_fields_get_an_answer(values: dict[int, Any], fields: dict[str, Any], app: App) -> None:
    """And what a call does in the end is an answer too, not a traceback in the log."""
    good = ["Late.", "tuned", "anna", NOBODY, None, None, "", "as trained", 0.9, False, 0]
    data = [values.get(at, value) for at, value in enumerate(good)]
    call = {"data": data, "fn_index": 2, "session_hash": "fuzz", "trigger_id": None} | fields
    with contextlib.redirect_stderr(io.StringIO()) as log:
        answer = app.ask("POST", "/gradio_api/queue/join", json.dumps(call).encode())
        if answer.status == 200:
            ended = app.ask("GET", "/gradio_api/queue/data", query=b"session_hash=" + str(call["session_hash"]).encode())
            assert b"process_completed" in ended.body
    # gradio logs its own messages so: that a choice is not in a list, or a number out of its range.
    assert log.getvalue().count("Traceback") == log.getvalue().count("gradio.exceptions.Error: "), log.getvalue()


@FEW
@given(body=st.dictionaries(st.sampled_from(["session_hash", "fn_index", "event_id"]), ANYTHING | st.just("fuzz"), max_size=3))
def test_any_cancel_and_reset_fields_get_an_answer(body: dict[str, Any], app: App) -> None:
    for name in ("cancel", "reset"):
        app.ask("POST", f"/gradio_api/{name}", json.dumps(body).encode())
        app.ask("POST", f"/gradio_api/{name}", json.dumps({"session_hash": "fuzz", "fn_index": 2, "event_id": "none"} | body).encode())


@pytest.mark.parametrize("body", [b"\xff", b"{", b"[" * 20_000, b"NaN", b"1" * 5000, b'"\\ud800"', b"[1]", b"null", b""])
def test_invalid_bodies_are_refused(body: bytes, app: App) -> None:
    for place in POSTS[:-1]:
        assert app.ask("POST", place, body).status == 400


def test_a_valid_request_is_still_answered(app: App) -> None:
    """After all of these."""
    body = {"model": "tuned", "voice": "anna", "input": "Late.", "response_format": "pcm"}
    assert app.ask("POST", "/v1/audio/speech", json.dumps(body).encode()).status == 200
    assert app.ask("GET", "/").status == 200
