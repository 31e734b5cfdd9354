"""Metrics of a chat server in Prometheus' text format, for `GET /metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overtone.recipes.serving.prometheus_metrics import RequestMetrics, ServerMetrics, format_by_model


@dataclass
class ChatModelMetrics(RequestMetrics):
    """Counters of one model since the server started."""

    prompt_tokens: int = 0
    answer_tokens: int = 0


class ChatServerMetrics(ServerMetrics[ChatModelMetrics]):
    """Counters of a chat server since it started."""

    prefix: ClassVar = "chat"
    first_part: ClassVar = "text"
    api_path: ClassVar = "/v1/chat/completions"

    def list_result_families(self) -> list[list[str]]:
        """Tokens of prompts and answers."""
        prompts = [(name, model.prompt_tokens) for name, model in self.models.items()]
        answers = [(name, model.answer_tokens) for name, model in self.models.items()]
        return [
            format_by_model("chat_prompt_tokens_total", "Tokens of the prompts of accepted requests.", prompts),
            format_by_model("chat_answer_tokens_total", "Tokens of their answers.", answers),
        ]
