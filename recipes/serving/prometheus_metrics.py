"""Metrics of a server: its HTTP responses, how its requests ended, and the load of its models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LATENCY_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of a histogram's buckets in seconds."""
OUTCOMES = ("completed", "cancelled", "failed", "deadline", "queue_full", "shutting_down")
"""Outcomes of a request. `cancelled`: the client disconnected. The last two never reached the model."""


class ServerMetrics:
    """Metrics of a server since it started, and the registry that contains them. Any thread may count."""

    def __init__(self, subject: str, first_part: str, paths: frozenset[str], models: Collection[str], results: Mapping[str, str]) -> None:
        """`subject`: `speech` or `chat`, part of the names of most metrics. `first_part`: kind of the first part of a result, `audio` or
        `text`. `paths`: those of requests that a model answers, of the API and of the page. `results`: name → description of each counter
        of what the models generated."""
        prometheus_client.disable_created_metrics()  # else each counter has a twin with the time at which it was made
        self.registry, self.open_calls = CollectorRegistry(), 0
        self._paths = paths

        def count(name: str, about: str, labels: tuple[str, ...] = ("model",)) -> Counter:
            return Counter(f"overtone_{name}", about, labels, registry=self.registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"overtone_{name}", about, registry=self.registry)

        self._responses = count("http_requests_total", "HTTP requests by path and status.", ("method", "path", "status"))
        self.requests = count(f"{subject}_requests_total", "Requests by how they ended.", ("model", "outcome"))
        gauge(f"http_{subject}_responses_open", "Responses in progress that a model generates.").set_function(lambda: self.open_calls)
        self.queue_depth = gauge(f"{subject}_queue_depth", "Requests that wait or are in a batch.")
        self.queue_limit = gauge(f"{subject}_queue_limit", "Requests of a model that may wait; more get status 429.")
        self.results = {name: count(f"{subject}_{name}_total", about) for name, about in results.items()}
        self.generation_seconds = count(f"{subject}_generation_seconds_total", "Time that the model took for it, without waiting.")
        self.batch_steps = count(f"{subject}_batch_steps_total", "Steps of the model's batch.")
        self.batch_requests = count(f"{subject}_batch_requests_total", "Requests in the batch, summed over the steps.")
        name, about = f"overtone_{subject}_time_to_first_{first_part}_seconds", f"Time to the first {first_part}, with that in the queue."
        self.first_part_seconds = Histogram(name, about, ("model",), registry=self.registry, buckets=LATENCY_BOUNDS)
        for model in models:  # counters exist before their first event, so that its increase is seen
            for outcome in OUTCOMES:
                self.requests.labels(model, outcome)
            for metric in (*self.results.values(), self.generation_seconds, self.batch_steps, self.batch_requests, self.first_part_seconds):
                metric.labels(model)

    def count_responses(self, app: ASGIApp) -> ASGIApp:
        """Middleware that counts responses by method, path and status, and the open ones of `paths`.

        Paths that the server does not have count as `other`, like unusual methods: a label with any path would grow without limit.
        """

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            path = scope["path"] if scope["path"] in (*self._paths, "/v1/models", "/health", "/metrics") else "other"

            async def count(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._responses.labels(method, path, message["status"]).inc()
                await send(message)

            is_generated = path in self._paths
            self.open_calls += is_generated
            try:
                await app(scope, receive, count)
            finally:
                self.open_calls -= is_generated

        return counted
