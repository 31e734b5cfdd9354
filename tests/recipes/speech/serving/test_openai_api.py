"""Tests of `overtone.recipes.speech.serving.openai_api` with a real model in this process; test_http_server.py tests it with OpenAI's
client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from fastapi import FastAPI
from starlette.testclient import TestClient

from overtone.recipes.qwen3_tts.inference.synthesizer import open_synthesizer
from overtone.recipes.speech.interface import SpeechResult
from overtone.recipes.speech.passages import join_results, split_text
from overtone.recipes.speech.serving import audio_encoding
from overtone.recipes.speech.serving.audio_encoding import FORMATS
from overtone.recipes.speech.serving.openai_api import Limits, add_to
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.uploaded_clips import Clips

GOOD = {"model": "tuned", "voice": "anna", "input": "It is never late!"}
LONG = "It is never late! " * 25
"""About 32 s: two passages."""


@pytest.fixture(scope="module")
def speech(two_voices: Any, nano: Path) -> Iterator[SpeechQueue]:
    """A model that ends what it has learned, and an untrained one that never ends."""
    speech = SpeechQueue({"tuned": open_synthesizer(two_voices.custom_voice), "nano": open_synthesizer(nano)}, room=2)
    yield speech
    speech.close()


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clips]:
    clips = Clips(tmp_path_factory.mktemp("clips"))
    yield clips
    clips.close()


@pytest.fixture(scope="module")
def client(speech: SpeechQueue, clips: Clips) -> Iterator[TestClient]:
    app = FastAPI()
    add_to(app, speech, Limits(chars=500, seconds=3), clips)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_every_format_has_its_media_type(client: TestClient, speech: SpeechQueue) -> None:
    for name, form in FORMATS.items():
        answer = client.post("/v1/audio/speech", json=GOOD | {"response_format": name})
        assert answer.status_code == 200 and answer.headers["content-type"] == form.media_type
        seconds = len(answer.content) / 48000 if name == "pcm" else 0.72
        if name not in ("pcm", "aac"):
            wave, rate = soundfile.read(io.BytesIO(answer.content))
            seconds = len(wave) / rate
        assert seconds == pytest.approx(0.72, abs=0.1) and len(answer.content) > 500
    assert speech.pending == 0


@pytest.mark.parametrize(
    ("wrong", "status", "param", "message"),
    [
        ({"model": "x"}, 404, "model", "models: tuned, nano"),
        ({"voice": "x"}, 400, "voice", "tuned has anna, bert"),
        ({"voice": {"id": "x"}}, 400, "voice", "tuned has anna, bert"),
        ({"model": "nano"}, 400, "voice", "it clones a reference clip: send it as ref_audio"),
        ({"input": " "}, 400, "input", "input has nothing to speak; give"),
        ({"input": "…"}, 400, "input", "nothing to speak ('…')"),
        ({"input": "— 😊 * \u200b"}, 400, "input", "nothing to speak"),
        ({"input": "a" * 501}, 400, "input", "501 characters, at most 500 are accepted"),
        ({"voice": None}, 400, "voice", "voice is missing; tuned has anna, bert"),
        ({"ref_text": "Hello."}, 400, "ref_text", "ref_audio, which is missing"),
        ({"ref_audio": "UklGRg=="}, 400, "voice", "voice and ref_audio each choose a voice"),
        ({"ref_audio": "UklGRg==", "voice": None}, 400, "ref_audio", "tuned cannot clone a reference clip"),
        ({"model": "nano", "ref_audio": "https://x.example/a.wav", "voice": None}, 400, "ref_audio", "addresses are not fetched"),
        ({"model": "nano", "ref_audio": "UklGRg==", "voice": None}, 400, "ref_audio", "the reference clip cannot be used"),
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


def decode_pcm(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<i2").astype(np.float32) / 32767


def test_a_long_text_is_spoken_in_passages_that_are_joined(client: TestClient) -> None:
    passages = split_text(LONG, 3)
    spoken = [client.post("/v1/audio/speech", json=GOOD | {"input": text, "response_format": "pcm"}) for text in passages]
    alone = [decode_pcm(each.content) for each in spoken]
    answer = client.post("/v1/audio/speech", json=GOOD | {"input": LONG, "response_format": "pcm"})
    assert answer.status_code == 200 and answer.headers["x-speech-passages"] == str(len(passages)) and len(passages) > 2
    assert np.allclose(decode_pcm(answer.content), join_waves(alone), atol=2e-4), "the speech of each passage as if it were alone"


def join_waves(waves: list[np.ndarray]) -> np.ndarray:
    return join_results([SpeechResult(wave, 24000, True) for wave in waves]).wave


def test_emoji_and_markup_are_not_spoken_but_counted(client: TestClient) -> None:
    plain = client.post("/v1/audio/speech", json=GOOD | {"response_format": "wav"})
    marked = client.post("/v1/audio/speech", json=GOOD | {"input": "It is *never* late! 😊😊", "response_format": "wav"})
    assert marked.headers["x-speech-removed"] == "2 emoji, 1 markup" and "x-speech-removed" not in plain.headers
    assert marked.content == plain.content


def test_speech_without_an_end_is_no_complete_response(client: TestClient, fresh: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is written at once says so in a header; a stream is broken off."""
    clip = base64.b64encode((fresh.config.data.train.parent / "low.flac").read_bytes()).decode()
    endless = {"model": "nano", "input": "Hi.", "ref_audio": f"data:audio/flac;base64,{clip}"}
    answer = client.post("/v1/audio/speech", json=endless | {"response_format": "flac"})
    assert answer.status_code == 200 and answer.headers["x-speech-cut-at-seconds"] == "3"
    assert soundfile.info(io.BytesIO(answer.content)).duration == pytest.approx(3, abs=0.1)
    assert "cut off at --max-seconds 3" in capsys.readouterr().err
    client.post("/v1/audio/speech", json=endless | {"response_format": "pcm"})  # test_serve_command.py has a real client
    assert "was broken off: the model did not end the speech of a passage, which was cut off at --max-seconds 3" in capsys.readouterr().err


def test_the_voice_of_a_reference_clip_is_cloned(client: TestClient, speech: SpeechQueue, clips: Clips, fresh: Any) -> None:
    folder = fresh.config.data.train.parent
    waves = []
    for name in ("low.flac", "high.flac", "low.flac"):
        clip = base64.b64encode((folder / name).read_bytes()).decode()
        call = {"model": "nano", "input": "Hi.", "ref_audio": clip, "response_format": "flac"}
        waves.append(client.post("/v1/audio/speech", json=call).content)
    assert waves[0] == waves[2] != waves[1]


def test_unknown_paths_and_invalid_json_are_errors(client: TestClient) -> None:
    for answer in (client.get("/v1/voices"), client.get("/v1/models/x"), client.get("/v1/audio/speech")):
        assert answer.status_code == 404 and answer.json()["error"]["message"]
    answer = client.post("/v1/audio/speech", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"


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
