"""OpenAI's transcription API: what is answered in each format, and fields that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from overtone.recipes.whisper.inference.file_transcription import Transcript
from overtone.recipes.whisper.serving import transcription_api, transcription_queue
from overtone.recipes.whisper.serving.transcription_api import split_segments
from tests.recipes.whisper.serving.served_whisper import FOUND, WORDS, make_queue

Given = list[tuple[Path, bytes, str | None]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Path, content and language of the recordings that were transcribed."""
    seen: Given = []

    def transcribe(_: Any, __: Any, path: Path, ___: str, language: str | None, *____: Any) -> Transcript:
        seen.append((path, path.read_bytes(), language))
        return FOUND

    monkeypatch.setattr(transcription_queue, "transcribe_file", transcribe)
    return seen


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    queue, app = make_queue(), FastAPI()
    transcription_api.add_to(app, queue, tmp_path)
    with TestClient(app) as client:
        yield client
    queue.close()


def post(client: TestClient, name: str = "talk.MP3", **fields: Any) -> Any:
    return client.post("/v1/audio/transcriptions", data={"model": "mine"} | fields, files={"file": (name, b"sound")})


def test_the_text_is_the_answer_and_the_recording_is_removed(client: TestClient, given: Given, tmp_path: Path) -> None:
    assert post(client).json() == {"text": "Good day. One two"}
    assert post(client, "../x.exe", response_format="text", model="exports/mine", language="de").text == "Good day. One two\n"
    assert [(path.suffix, data, language) for path, data, language in given] == [(".mp3", b"sound", None), ("", b"sound", "german")]
    assert all(path.parent == tmp_path for path, _, _ in given) and [*tmp_path.iterdir()] == []


def test_segments_and_words_have_times(client: TestClient, given: Given) -> None:
    found = post(client, response_format="verbose_json", **{"timestamp_granularities[]": ["word", "segment"]}).json()
    assert found["words"][1] == {"word": "day.", "start": 0.5, "end": 1.0} and len(found["words"]) == 4
    assert [(one["start"], one["end"], one["text"]) for one in found["segments"]] == [
        (0.1, 1.0, " Good day."),
        (1.1, 1.4, " One"),
        (3.0, 3.25, " two"),
    ]
    assert (found["language"], found["duration"], found["task"]) == ("english", 3.5, "transcribe")
    plain = post(client, response_format="verbose_json").json()
    assert "segments" in plain and "words" not in plain


def test_a_segment_ends_with_a_sentence_or_before_a_pause() -> None:
    assert [len(words) for words in split_segments(WORDS)] == [2, 1, 1] and split_segments([]) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "srt"}, "response_format"),
        ({"temperature": "0.5"}, "temperature"),
        ({"stream": "true"}, "stream"),
        ({"prompt": "Asterisk"}, "prompt"),
        ({"language": "klingon"}, "language"),
        ({"chunking_strategy": "auto"}, "chunking_strategy"),
        ({"timestamp_granularities[]": "letter"}, "timestamp_granularities[]"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
        ({"model": "other"}, "model"),
    ],
)
def test_what_is_not_supported_is_refused_and_not_ignored(client: TestClient, given: Given, fields: dict[str, str], param: str) -> None:
    answer = post(client, **fields)
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param and given == []


def test_a_repeated_field_is_refused(client: TestClient, given: Given) -> None:
    files = [("file", ("a.wav", b"sound")), *(("language", (None, code)) for code in ("de", "en")), ("model", (None, "mine"))]
    answer = client.post("/v1/audio/transcriptions", files=files)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "language" and given == []


def test_a_request_without_a_recording_or_model_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/audio/transcriptions", data={"model": "mine"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "file"
    answer = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", b"sound")})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"


def test_models_are_listed_and_other_paths_explained(client: TestClient) -> None:
    assert client.get("/v1/models").json()["data"] == [{"id": "mine", "object": "model", "created": 7, "owned_by": "overtone"}]
    assert client.get("/v1/models/exports/mine").json()["id"] == "mine"
    assert client.post("/v1/audio/speech").json()["error"]["code"] == "unknown_url"


def test_a_larger_recording_is_refused(client: TestClient, given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription_api, "LARGEST", 4)
    assert post(client).status_code == 413 and given == []
