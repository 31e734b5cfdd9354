"""Metrics of a server in Prometheus' text format, for `GET /metrics`.

https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format. Nothing is locked: each counter has one writer, the
server's event loop or the thread that generates speech.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from recipes.serving.batch_scheduler import LoadFigures

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_AUDIO_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram's buckets in seconds."""
OUTCOMES = ("completed", "cancelled", "failed", "deadline", "queue_full", "shutting_down")
"""How a request for speech can end. `cancelled`: the client disconnected. The last two never reached the model."""
SPEECH_PATH = "/v1/audio/speech"
API_PATHS = frozenset({SPEECH_PATH, "/v1/models", "/health", "/metrics"})
"""As `ResponseCounters.paths`."""


@dataclass
class ModelMetrics:
    """Counters of one model since the server started."""

    load: LoadFigures = field(default_factory=LoadFigures)
    """Steps of its batch, and their time."""
    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    audio_seconds: float = 0.0
    """Duration of the generated speech."""
    first_audio_counts: list[int] = field(default_factory=lambda: [0] * (len(FIRST_AUDIO_BOUNDS) + 1))
    """Requests by time to first audio, one count per bucket and one for longer times; not cumulative."""
    first_audio_seconds: float = 0.0
    """Sum of these times."""

    def observe_first_audio(self, seconds: float) -> None:
        self.first_audio_counts[bisect_left(FIRST_AUDIO_BOUNDS, seconds)] += 1
        self.first_audio_seconds += seconds


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
            format_family(
                "speech_requests_total",
                "counter",
                "Requests for speech, of the API and of the page, by how they ended.",
                (
                    (f"{{{format_label('model', name)},{format_label('outcome', outcome)}}}", count)
                    for name, model in self.models.items()
                    for outcome, count in model.outcomes.items()
                ),
            ),
            format_family("http_speech_responses_open", "gauge", "Responses of the API for speech in progress.", [("", self.open_calls)]),
            format_family("speech_queue_depth", "gauge", "Requests that wait or are being spoken.", [("", pending)]),
            format_family("speech_queue_limit", "gauge", "Requests of a model that may wait; more get status 429.", [("", room)]),
            self._by_model("speech_audio_seconds_total", "Duration of the generated speech.", lambda model: model.audio_seconds),
            self._by_model(
                "speech_generation_seconds_total",
                "Time that the model took for it, without waiting.",
                lambda model: model.load.generation_seconds,
            ),
            self._by_model("speech_batch_steps_total", "Steps of the model's batch.", lambda model: model.load.steps),
            self._by_model(
                "speech_batch_requests_total", "Requests in the batch, summed over the steps.", lambda model: model.load.occupied_slots
            ),
            self._first_audio(),
        ]
        return "\n".join(line for family in families for line in family) + "\n"

    def _by_model(self, name: str, about: str, value: Callable[[ModelMetrics], float]) -> list[str]:
        return format_family(
            name, "counter", about, ((f"{{{format_label('model', model)}}}", value(one)) for model, one in self.models.items())
        )

    def _first_audio(self) -> list[str]:
        name = "speech_time_to_first_audio_seconds"
        lines = format_family(name, "histogram", "Time from a request to its first audio, with the time in the queue.", ())
        for model, one in self.models.items():
            total, label = 0, format_label("model", model)
            for bound, count in zip([*map(str, FIRST_AUDIO_BOUNDS), "+Inf"], one.first_audio_counts, strict=True):
                total += count
                lines.append(f'overtone_{name}_bucket{{{label},le="{bound}"}} {total}')
            lines += [f"overtone_{name}_sum{{{label}}} {one.first_audio_seconds}", f"overtone_{name}_count{{{label}}} {total}"]
        return lines


class ResponseCounters(Protocol):
    """What `count_responses` counts in."""

    responses: Counter[tuple[str, str, int]]
    open_calls: int

    @property
    def paths(self) -> frozenset[str]:
        """Paths that are counted by name. All others count as `other`: a label with any path in it would grow without limit."""

    @property
    def watched_path(self) -> str:
        """The path whose open calls are counted."""


def count_responses(app: ASGIApp, metrics: ResponseCounters) -> ASGIApp:
    """Middleware that counts responses by method, path and status, and the open ones."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
                path = scope["path"] if scope["path"] in metrics.paths else "other"
                metrics.responses[method, path, message["status"]] += 1
            await send(message)

        is_watched = scope["path"] == metrics.watched_path
        metrics.open_calls += is_watched
        try:
            await app(scope, receive, count)
        finally:
            metrics.open_calls -= is_watched

    return counted


def list_response_samples(responses: Mapping[tuple[str, str, int], int]) -> Iterable[tuple[str, float]]:
    for (method, path, status), count in sorted(responses.items()):
        yield f"{{{format_label('method', method)},{format_label('path', path)},{format_label('status', str(status))}}}", count


def format_family(name: str, kind: str, about: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """Lines of one metric. `samples`: (labels in braces, value)."""
    head = [f"# HELP overtone_{name} {about}", f"# TYPE overtone_{name} {kind}"]
    return [*head, *(f"overtone_{name}{labels} {value}" for labels, value in samples)]


def format_label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode("utf-8", "replace").decode()
    return f'{name}="{escaped}"'
