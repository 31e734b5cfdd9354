"""Metrics of a speech server in Prometheus' text format, for `GET /metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from recipes.serving.prometheus_metrics import (
    RequestMetrics,
    format_by_model,
    format_family,
    format_latency,
    format_load,
    format_outcomes,
    list_response_samples,
)

SPEECH_PATH = "/v1/audio/speech"
API_PATHS = frozenset({SPEECH_PATH, "/v1/models", "/health", "/metrics"})
"""As `ResponseCounters.paths`."""


@dataclass
class ModelMetrics(RequestMetrics):
    """Counters of one voice since the server started."""

    audio_seconds: float = 0.0
    """Duration of the generated speech."""


@dataclass
class ServerMetrics:
    """Counters of a server since it started."""

    models: Mapping[str, ModelMetrics]
    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(method, path, status) → HTTP responses."""
    open_calls: int = 0
    """Calls of the API for speech whose response is not complete."""
    paths: frozenset[str] = API_PATHS
    watched_path: str = SPEECH_PATH

    def render(self, pending: int, room: int) -> str:
        """The text of `GET /metrics`. `pending`: requests that wait or are spoken; `room`: how many may wait."""
        families = [
            format_family("http_requests_total", "counter", "HTTP requests by path and status.", list_response_samples(self.responses)),
            format_outcomes("speech_requests_total", "Requests for speech, of the API and of the page, by how they ended.", self.models),
            format_family("http_speech_responses_open", "gauge", "Responses of the API for speech in progress.", [("", self.open_calls)]),
            format_family("speech_queue_depth", "gauge", "Requests that wait or are being spoken.", [("", pending)]),
            format_family("speech_queue_limit", "gauge", "Requests of a model that may wait; more get status 429.", [("", room)]),
            format_by_model(
                "speech_audio_seconds_total",
                "Duration of the generated speech.",
                [(name, model.audio_seconds) for name, model in self.models.items()],
            ),
            *format_load("speech", self.models),
            format_latency(
                "speech_time_to_first_audio_seconds", "Time from a request to its first audio, with the time in the queue.", self.models
            ),
        ]
        return "\n".join(line for family in families for line in family) + "\n"
