"""Metrics in Prometheus' text format, and the counters that every server has: its HTTP responses and how its requests ended.

https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format. Nothing is locked: each counter has one writer, the
server's event loop or the thread that generates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .batch_scheduler import DeadlineError, LoadFigures, QueueFullError, ServerClosedError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of a histogram's buckets in seconds."""
OUTCOMES = ("completed", "cancelled", "failed", "deadline", "queue_full", "shutting_down")
"""How a request can end. `cancelled`: the client disconnected. The last two never reached the model."""
OUTCOME_OF_ERROR = {ServerClosedError: "shutting_down", QueueFullError: "queue_full", DeadlineError: "deadline"}


@dataclass
class RequestMetrics:
    """Counters of one model since the server started."""

    load: LoadFigures = field(default_factory=LoadFigures)
    """Steps of its batch, and their time."""
    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    first_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    """Requests by the time to the first part of their result, one count per bucket and one for longer times; not cumulative."""
    first_seconds: float = 0.0
    """Sum of these times."""

    def observe_first(self, seconds: float) -> None:
        """Count the time from a request to the first part of its result."""
        self.first_counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.first_seconds += seconds


def name_outcome(error: Exception) -> str:
    """The outcome of a request that ended with an error."""
    return OUTCOME_OF_ERROR.get(type(error), "failed")


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


def format_outcomes(name: str, about: str, models: Mapping[str, RequestMetrics]) -> list[str]:
    """Lines of the counter of requests by model and outcome."""
    return format_family(
        name,
        "counter",
        about,
        (
            (f"{{{format_label('model', model)},{format_label('outcome', outcome)}}}", count)
            for model, one in models.items()
            for outcome, count in one.outcomes.items()
        ),
    )


def format_by_model(name: str, about: str, values: Iterable[tuple[str, float]]) -> list[str]:
    """Lines of a counter. `values`: (model, value)."""
    return format_family(name, "counter", about, ((f"{{{format_label('model', model)}}}", value) for model, value in values))


def format_latency(name: str, about: str, models: Mapping[str, RequestMetrics]) -> list[str]:
    """Lines of the histogram of the times to the first part of a result."""
    lines = format_family(name, "histogram", about, ())
    for model, one in models.items():
        total, label = 0, format_label("model", model)
        for bound, count in zip([*map(str, LATENCY_BOUNDS), "+Inf"], one.first_counts, strict=True):
            total += count
            lines.append(f'overtone_{name}_bucket{{{label},le="{bound}"}} {total}')
        lines += [f"overtone_{name}_sum{{{label}}} {one.first_seconds}", f"overtone_{name}_count{{{label}}} {total}"]
    return lines


def format_load(prefix: str, models: Mapping[str, RequestMetrics]) -> list[list[str]]:
    """The families of each model's batch: its time, its steps, and the requests in it."""
    return [
        format_by_model(name, about, [(model, getattr(one.load, field)) for model, one in models.items()])
        for name, about, field in (
            (f"{prefix}_generation_seconds_total", "Time that the model took for it, without waiting.", "generation_seconds"),
            (f"{prefix}_batch_steps_total", "Steps of the model's batch.", "steps"),
            (f"{prefix}_batch_requests_total", "Requests in the batch, summed over the steps.", "occupied_slots"),
        )
    ]
