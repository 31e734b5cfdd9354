"""Metrics of a chat server in Prometheus' text format, for `GET /metrics`."""

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

CHAT_PATH = "/v1/chat/completions"
API_PATHS = frozenset({CHAT_PATH, "/v1/models", "/health", "/metrics"})
"""As `ResponseCounters.paths`."""


@dataclass
class ChatModelMetrics(RequestMetrics):
    """Counters of one model since the server started."""

    prompt_tokens: int = 0
    answer_tokens: int = 0


@dataclass
class ChatServerMetrics:
    """Counters of a server since it started."""

    models: Mapping[str, ChatModelMetrics]
    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(method, path, status) → HTTP responses."""
    open_calls: int = 0
    """Calls for an answer whose response is not complete."""
    paths: frozenset[str] = API_PATHS
    watched_path: str = CHAT_PATH

    def render(self, pending: int, room: int) -> str:
        """The text of `GET /metrics`. `pending`: requests that wait or are answered; `room`: how many may wait."""
        families = [
            format_family("http_requests_total", "counter", "HTTP requests by path and status.", list_response_samples(self.responses)),
            format_outcomes("chat_requests_total", "Requests for an answer by how they ended.", self.models),
            format_family("http_chat_responses_open", "gauge", "Responses with an answer in progress.", [("", self.open_calls)]),
            format_family("chat_queue_depth", "gauge", "Requests that wait or are being answered.", [("", pending)]),
            format_family("chat_queue_limit", "gauge", "Requests of a model that may wait; more get status 429.", [("", room)]),
            format_by_model(
                "chat_prompt_tokens_total",
                "Tokens of the prompts of accepted requests.",
                [(name, one.prompt_tokens) for name, one in self.models.items()],
            ),
            format_by_model(
                "chat_answer_tokens_total", "Tokens of their answers.", [(name, one.answer_tokens) for name, one in self.models.items()]
            ),
            *format_load("chat", self.models),
            format_latency(
                "chat_time_to_first_text_seconds", "Time from a request to its first text, with the time in the queue.", self.models
            ),
        ]
        return "\n".join(line for family in families for line in family) + "\n"
