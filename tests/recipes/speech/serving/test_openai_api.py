"""Tests of `recipes.speech.serving.openai_api` with a real model in this process; test_http_server.py tests it with OpenAI's client."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from fastapi import FastAPI
from starlette.testclient import TestClient

from recipes.speech.serving import audio_encoding
from recipes.speech.serving.audio_encoding import FORMATS
from recipes.speech.serving.openai_api import Limits, add_to
from recipes.speech.serving.request_queue import SpeechQueue
from recipes.voice_clone.inference.synthesizer import open_synthesizer

GOOD = {"model": "tuned", "voice": "anna", "input": "Never late."}


@pytest.fixture(scope="module")
def speech(fresh: Any, nano: Path, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeechQueue]:
    tuned = export(fresh, "custom_voice", tmp_path_factory.mktemp("api") / "tuned")
    speech = SpeechQueue({"tuned": open_synthesizer(tuned), "nano": open_synthesizer(nano)}, room=2)
    yield speech
    speech.close()


@pytest.fixture(scope="module")
def client(speech: SpeechQueue) -> Iterator[TestClient]:
    app = FastAPI()
    add_to(app, speech, Limits(chars=100, seconds=0.5))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_every_format_has_its_media_type(client: TestClient, speech: SpeechQueue) -> None:
    for name, form in FORMATS.items():
        answer = client.post("/v1/audio/speech", json=GOOD | {"response_format": name})
        assert answer.status_code == 200 and answer.headers["content-type"] == form.media_type
        seconds = len(answer.content) / 48000 if name == "pcm" else 0.56
        if name not in ("pcm", "aac"):
            wave, rate = soundfile.read(io.BytesIO(answer.content))
            seconds = len(wave) / rate
        assert seconds == pytest.approx(0.56, abs=0.1) and len(answer.content) > 500
    assert speech.pending == 0


@pytest.mark.parametrize(
    ("wrong", "status", "param", "message"),
    [
        ({"model": "x"}, 404, "model", "models: tuned, nano"),
        ({"voice": "x"}, 400, "voice", "tuned has anna, bert"),
        ({"voice": {"id": "x"}}, 400, "voice", "tuned has anna, bert"),
        ({"model": "nano"}, 400, "voice", "nano has no voice by name; it clones a reference clip"),
        ({"input": " "}, 400, "input", "input is empty"),
        ({"input": "a" * 101}, 400, "input", "101 characters, at most 100 are accepted"),
        ({"response_format": "vorbis"}, 400, "response_format", "available: mp3, opus, aac, flac, wav, pcm"),
        ({"speed": 1.5}, 400, "speed", "speed 1.5 is not supported"),
        ({"stream_format": "sse"}, 400, "stream_format", "use audio"),
        ({"instructions": "Whisper."}, 400, "instructions", "omit them"),
        ({"language": "latin"}, 400, "language", "known: chinese"),
        ({"loudness": 3}, 400, "loudness", "Extra inputs are not permitted"),
        ({"input": None}, 400, "input", "should be a valid string"),
        ({"seed": -1}, 400, "seed", "greater than or equal to 0"),
        ({"seed": 2**63}, 400, "seed", "less than or equal to"),
        ({"seed": "x"}, 400, "seed", "valid integer"),
    ],
)
def test_requests_that_cannot_be_fulfilled_are_refused(wrong: dict, status: int, param: str, message: str, client: TestClient) -> None:
    answer = client.post("/v1/audio/speech", json=GOOD | wrong)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert message in error["message"] and error["type"] == "invalid_request_error" and error["code"]


def test_unknown_paths_and_invalid_json_are_errors(client: TestClient) -> None:
    for answer in (client.get("/v1/voices"), client.get("/v1/models/x"), client.get("/v1/audio/speech")):
        assert answer.status_code == 404 and answer.json()["error"]["message"]
    answer = client.post("/v1/audio/speech", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]["message"]


def test_a_full_queue_answers_with_the_time_to_retry(client: TestClient, speech: SpeechQueue) -> None:
    speech._scheduler._accepted["tuned"] += 3
    try:
        answer = client.post("/v1/audio/speech", json=GOOD)
    finally:
        speech._scheduler._accepted["tuned"] -= 3
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert client.post("/v1/audio/speech", json=GOOD).status_code == 200


def test_a_failure_of_the_model_is_a_server_error(client: TestClient, speech: SpeechQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech.models["tuned"], "stream", lambda *_: 1 / 0)
    answer = client.post("/v1/audio/speech", json=GOOD)
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert speech.pending == 0


@pytest.mark.parametrize("wrong", [{"input": "\ud800"}, {"voice": "\ud800"}, {"model": "\ud800"}, {"language": "\ud800"}, {"\udfff": 1}])
def test_a_lone_surrogate_is_refused(wrong: dict, client: TestClient) -> None:
    """The guard refuses it too; the API does not rely on that."""
    body = json.dumps(GOOD | wrong)
    answer = client.post("/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404) and answer.json()["error"]["message"]


def test_tokenizing_and_encoding_do_not_block_the_event_loop(
    client: TestClient, speech: SpeechQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts and long speech must not delay other requests."""
    threads: list[str] = []
    check, encoder = speech.models["tuned"].check, audio_encoding.make_encoder

    class ThreadRecorder:
        def __init__(self, name: str, rate: int, *rest: Any) -> None:
            self._encoder = encoder(name, rate, *rest)

        def feed(self, wave: Any) -> bytes:
            threads.append("feed" if runs_in_event_loop() else "")
            return self._encoder.feed(wave)

        def finish(self) -> bytes:
            threads.append("finish" if runs_in_event_loop() else "")
            return self._encoder.finish()

    def watched(request: Any) -> None:
        threads.append("check" if runs_in_event_loop() else "")
        check(request)

    monkeypatch.setattr(speech.models["tuned"], "check", watched)
    monkeypatch.setattr(audio_encoding, "make_encoder", ThreadRecorder)
    assert client.post("/v1/audio/speech", json=GOOD | {"response_format": "flac"}).status_code == 200
    assert len(threads) > 3 and set(threads) == {""}


def runs_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
