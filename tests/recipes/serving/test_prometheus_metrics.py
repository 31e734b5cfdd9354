"""Tests of `overtone.recipes.serving.prometheus_metrics`: the page is read with the parser of `prometheus_client`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from overtone.recipes.serving.prometheus_metrics import ServerMetrics

SPEECH, PAGE = "/v1/audio/speech", "/speak"


def make_metrics(*models: str) -> ServerMetrics:
    return ServerMetrics("speech", "audio", frozenset({SPEECH, PAGE}), models, {"audio_seconds": "Duration."})


def read_page(metrics: ServerMetrics) -> dict[str, list[tuple[str, Mapping[str, str], float]]]:
    """Name and type of each family → its samples with labels."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {f"{family.name} {family.type}": [(one.name, one.labels, one.value) for one in family.samples] for family in families}


def test_the_families_are_those_of_the_docs() -> None:
    assert list(read_page(make_metrics("me"))) == [
        "overtone_http_requests counter",
        "overtone_speech_requests counter",
        "overtone_http_speech_responses_open gauge",
        "overtone_speech_queue_depth gauge",
        "overtone_speech_queue_limit gauge",
        "overtone_speech_audio_seconds counter",
        "overtone_speech_generation_seconds counter",
        "overtone_speech_batch_steps counter",
        "overtone_speech_batch_requests counter",
        "overtone_speech_time_to_first_audio_seconds histogram",
    ]


def test_a_counter_exists_before_its_first_event() -> None:
    metrics = make_metrics("me")
    metrics.requests.labels("me", "completed").inc()
    page = read_page(metrics)
    counts = {labels["outcome"]: value for _, labels, value in page["overtone_speech_requests counter"]}
    assert counts == {"completed": 1, "cancelled": 0, "failed": 0, "deadline": 0, "queue_full": 0, "shutting_down": 0}
    for name in ("audio_seconds", "generation_seconds", "batch_steps", "batch_requests"):
        assert page[f"overtone_speech_{name} counter"] == [(f"overtone_speech_{name}_total", {"model": "me"}, 0)]
    assert page["overtone_speech_time_to_first_audio_seconds histogram"][-1][-1] == 0


def test_the_buckets_of_the_latency_are_seconds() -> None:
    metrics = make_metrics("me")
    for seconds in (0.01, 0.1, 0.3, 99.0):
        metrics.first_part_seconds.labels("me").observe(seconds)
    samples = read_page(metrics)["overtone_speech_time_to_first_audio_seconds histogram"]
    buckets = {labels["le"]: value for name, labels, value in samples if name.endswith("_bucket")}
    assert list(buckets) == ["0.05", "0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0", "30.0", "+Inf"]
    assert list(buckets.values()) == [1, 2, 2, 3, 3, 3, 3, 3, 3, 4], "buckets are cumulative, and a bound belongs to its own"


@pytest.mark.parametrize("name", ['a"} 1', "b\nc 2", "d\\", "Zoë"])
def test_a_name_cannot_break_the_format(name: str) -> None:
    assert read_page(make_metrics(name))["overtone_speech_audio_seconds counter"][0][1] == {"model": name}


def test_responses_are_counted_by_path_and_status() -> None:
    metrics = make_metrics()
    seen = list[float]()

    def read_open() -> float:
        ((_, _, value),) = read_page(metrics)["overtone_http_speech_responses_open gauge"]
        return value

    def speak(_: object) -> PlainTextResponse:
        seen.append(read_open())
        return PlainTextResponse("", 429)

    app = Starlette(
        routes=[Route(path, speak, methods=["POST"]) for path in (SPEECH, PAGE)], middleware=[Middleware(metrics.count_responses)]
    )
    with TestClient(app) as client:
        client.post(SPEECH)
        client.post(PAGE)
        for number in range(3):
            client.get(f"/secret-{number}")
        client.request("BREW", "/v1/models")
    counts = {tuple(labels.values()): value for _, labels, value in read_page(metrics)["overtone_http_requests counter"]}
    assert counts == {("POST", SPEECH, "429"): 1, ("POST", PAGE, "429"): 1, ("GET", "other", "404"): 3, ("other", "/v1/models", "404"): 1}
    assert seen == [1, 1] and read_open() == metrics.open_calls == 0
