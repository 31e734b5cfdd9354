"""Tests of `overtone.recipes.llm_sft.serving.chat_metrics`; `tests/recipes/serving/test_prometheus_metrics.py` tests the format."""

from __future__ import annotations

from overtone.recipes.llm_sft.serving.chat_metrics import ChatModelMetrics, ChatServerMetrics


def test_counters_of_a_model_are_rendered() -> None:
    model = ChatModelMetrics(prompt_tokens=12, answer_tokens=34)
    model.outcomes["completed"] += 2
    model.load.steps, model.load.occupied_slots = 4, 10
    model.observe_first(0.3)
    lines = ChatServerMetrics({"me": model}, open_calls=1).render(pending=3, room=16).splitlines()
    for line in (
        'overtone_chat_requests_total{model="me",outcome="completed"} 2',
        'overtone_chat_prompt_tokens_total{model="me"} 12',
        'overtone_chat_answer_tokens_total{model="me"} 34',
        'overtone_chat_batch_requests_total{model="me"} 10',
        'overtone_chat_time_to_first_text_seconds_bucket{model="me",le="0.5"} 1',
        "overtone_http_chat_responses_open 1",
        "overtone_chat_queue_depth 3",
    ):
        assert line in lines
