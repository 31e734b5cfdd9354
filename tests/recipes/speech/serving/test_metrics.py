"""Tests of `overtone.recipes.speech.serving.metrics`: the numbers, and the text line by line as the format demands."""

from __future__ import annotations

import re

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from overtone.recipes.serving.prometheus_metrics import count_responses
from overtone.recipes.speech.serving.metrics import SpeechServerMetrics, VoiceMetrics

SAMPLE = re.compile(r'(overtone_[a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)')
"""A sample line of the exposition format."""


def read(text: str) -> dict[str, float]:
    """`name{labels}` → value. Asserts the format: each family is declared once, before its samples, and no line is anything else."""
    declared, found = list[str](), dict[str, float]()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            declared.append(line.split()[2])
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert re.sub(r"_(bucket|sum|count)$", "", match[1]) == declared[-1] or match[1] == declared[-1], line
            found[line.rpartition(" ")[0]] = float(match[3])
    assert len(set(declared)) == len(declared) == 10
    return found


def test_counters_of_a_model_are_rendered() -> None:
    model = VoiceMetrics()
    model.outcomes["completed"] += 2
    model.audio_seconds, model.load.generation_seconds = 7.5, 2.5
    model.load.steps, model.load.occupied_slots = 4, 10
    for seconds in (0.01, 0.1, 0.3, 99.0):
        model.observe_first(seconds)
    found = read(SpeechServerMetrics({"me": model}).render(pending=3, room=16))
    assert found['overtone_speech_requests_total{model="me",outcome="completed"}'] == 2
    assert found['overtone_speech_requests_total{model="me",outcome="failed"}'] == 0, "a counter exists before its first event"
    assert (found["overtone_speech_queue_depth"], found["overtone_speech_queue_limit"]) == (3, 16)
    assert found['overtone_speech_audio_seconds_total{model="me"}'] == 7.5
    assert found['overtone_speech_generation_seconds_total{model="me"}'] == 2.5
    assert (found['overtone_speech_batch_steps_total{model="me"}'], found['overtone_speech_batch_requests_total{model="me"}']) == (4, 10)
    buckets = {key: value for key, value in found.items() if "_bucket" in key}
    assert [*buckets.values()] == [1, 2, 2, 3, 3, 3, 3, 3, 3, 4], "buckets are cumulative, and a bound belongs to its own"
    assert found['overtone_speech_time_to_first_audio_seconds_count{model="me"}'] == 4
    assert found['overtone_speech_time_to_first_audio_seconds_sum{model="me"}'] == 99.41


def test_a_name_cannot_break_the_format() -> None:
    names = ['a"} 1', "b\nc 2", "d\\", "\ud800"]
    found = read(SpeechServerMetrics({name: VoiceMetrics() for name in names}).render(0, 1))
    assert len([key for key in found if key.startswith("overtone_speech_audio_seconds_total")]) == len(names)


def test_responses_are_counted_by_path_and_status() -> None:
    metrics = SpeechServerMetrics({})
    seen = list[int]()

    def speak(_: object) -> PlainTextResponse:
        seen.append(metrics.open_calls)
        return PlainTextResponse("", 429)

    app = Starlette(routes=[Route("/v1/audio/speech", speak, methods=["POST"])], middleware=[Middleware(count_responses, metrics=metrics)])
    with TestClient(app) as client:
        client.post("/v1/audio/speech")
        for number in range(3):
            client.get(f"/secret-{number}")
    found = read(metrics.render(0, 1))
    assert found['overtone_http_requests_total{method="POST",path="/v1/audio/speech",status="429"}'] == 1
    assert found['overtone_http_requests_total{method="GET",path="other",status="404"}'] == 3
    assert seen == [1] and metrics.open_calls == 0
