"""Metrics in Prometheus' text format, and the counters that every server has: its HTTP responses and how its requests ended.

https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format. Nothing is locked: each counter has one writer, the
server's event loop or the thread that generates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .continuous_batch_scheduler import DeadlineError, LoadFigures, QueueFullError, ServerClosedError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of a histogram's buckets in seconds."""
OUTCOMES = ("completed", "cancelled", "failed", "deadline", "queue_full", "shutting_down")
"""Outcomes of a request. `cancelled`: the client disconnected. The last two never reached the model."""
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


ModelMetrics = TypeVar("ModelMetrics", bound=RequestMetrics)


@dataclass
class ServerMetrics(Generic[ModelMetrics]):
    """Counters of a server since it started. A server's own class names what it serves, and adds the families of its results."""

    models: Mapping[str, ModelMetrics]
    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(method, path, status) → HTTP responses."""
    open_calls: int = 0
    """Calls of `api_path` whose response is not complete."""

    prefix: ClassVar[str]
    """Prefix of the families' names: `speech` or `chat`."""
    first_part: ClassVar[str]
    """Kind of the first part of a result: `audio` or `text`."""
    api_path: ClassVar[str]

    def list_result_families(self) -> list[list[str]]:
        """The families of what the models generated."""
        raise NotImplementedError

    def count_response(self, method: str, path: str, status: int) -> None:
        """Paths that the server does not have count as `other`, like unusual methods: a label with any path would grow without limit."""
        known = path in (self.api_path, "/v1/models", "/health", "/metrics")
        self.responses[method if method in ("GET", "HEAD", "POST") else "other", path if known else "other", status] += 1

    def render(self, pending: int, room: int) -> str:
        """The text of `GET /metrics`. `pending`: requests that wait or are in a batch; `room`: how many may wait."""
        prefix, first = self.prefix, self.first_part
        families = [
            format_family("http_requests_total", "counter", "HTTP requests by path and status.", list_response_samples(self.responses)),
            format_outcomes(f"{prefix}_requests_total", "Requests by how they ended.", self.models),
            format_family(f"http_{prefix}_responses_open", "gauge", "Responses of the API in progress.", [("", self.open_calls)]),
            format_family(f"{prefix}_queue_depth", "gauge", "Requests that wait or are in a batch.", [("", pending)]),
            format_family(f"{prefix}_queue_limit", "gauge", "Requests of a model that may wait; more get status 429.", [("", room)]),
            *self.list_result_families(),
            *format_load(prefix, self.models),
            format_latency(f"{prefix}_time_to_first_{first}_seconds", f"Time to the first {first}, with that in the queue.", self.models),
        ]
        return "\n".join(line for family in families for line in family) + "\n"


def count_responses(app: ASGIApp, metrics: ServerMetrics[Any]) -> ASGIApp:
    """Middleware that counts responses by method, path and status, and the open ones."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                metrics.count_response(scope["method"], scope["path"], message["status"])
            await send(message)

        is_api_call = scope["path"] == metrics.api_path
        metrics.open_calls += is_api_call
        try:
            await app(scope, receive, count)
        finally:
            metrics.open_calls -= is_api_call

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
