"""Tests of `overtone.recipes.language.serving.chat_api` in this process; test_serve_command.py tests it with OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from overtone.recipes.language.answer_generation import LoadedModel, generate_answer, make_row, tokenize_prompt
from overtone.recipes.language.serving.chat_api import add_to
from overtone.recipes.language.serving.chat_batch import ChatBatch
from overtone.recipes.language.serving.chat_queue import ChatQueue, ServedModel

GOOD = {"model": "m", "messages": [{"role": "user", "content": "Good day."}], "max_tokens": 30}


@pytest.fixture(scope="module")
def chats(loaded: LoadedModel) -> Iterator[ChatQueue]:
    chats = ChatQueue({"m": ServedModel(loaded, 7, 96, 60)}, {"m": ChatBatch(loaded, 4, 60, 96)}, 2, 60)
    yield chats
    chats.close()


@pytest.fixture(scope="module")
def client(chats: ChatQueue) -> Iterator[TestClient]:
    app = FastAPI()
    add_to(app, chats)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def read_events(text: str) -> list[Any]:
    """The objects of a stream, which is complete."""
    events = text.split("\n\n")
    assert events.pop() == "" and events.pop() == "data: [DONE]" and all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_an_answer_is_that_of_the_verb_generate_whole_and_streamed(client: TestClient, loaded: LoadedModel) -> None:
    prompt = tokenize_prompt(make_row("Good day.", None, loaded.tokenizer), loaded.tokenizer)
    expected = generate_answer(loaded, prompt, 30).text
    whole = client.post("/v1/chat/completions", json=GOOD).json()
    [choice] = whole["choices"]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": expected}, "length")
    assert whole["usage"] == {"prompt_tokens": len(prompt), "completion_tokens": 30, "total_tokens": len(prompt) + 30}
    streamed = client.post("/v1/chat/completions", json=GOOD | {"stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    first, *deltas, last, usage = read_events(streamed.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in deltas) == expected and len(deltas) > 5
    assert last["choices"][0]["finish_reason"] == "length" and last["usage"] is None
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert len({event["id"] for event in (first, *deltas, last, usage)}) == 1 and first["object"] == "chat.completion.chunk"


def test_the_same_seed_gives_the_same_answer(client: TestClient) -> None:
    def answer(**fields: Any) -> str:
        return client.post("/v1/chat/completions", json=GOOD | fields).json()["choices"][0]["message"]["content"]

    sampled = answer(temperature=1.2, seed=5)
    assert sampled == answer(temperature=1.2, seed=5) != answer(temperature=1.2, seed=6)
    assert answer() != sampled


@pytest.mark.parametrize(
    ("wrong", "status", "param", "message"),
    [
        ({"model": "x"}, 404, "model", "models: m"),
        ({"colour": 1}, 400, "colour", "Extra inputs are not permitted"),
        ({"n": 2}, 400, "n", "should be 1"),
        ({"logprobs": True}, 400, "logprobs", "should be False"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty", "should be 0"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format.type", "'text'"),
        ({"tool_choice": "required"}, 400, "tool_choice", "'auto'"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", "needs stream: true"),
        ({"temperature": 2.5}, 400, "temperature", "less than or equal to 2"),
        ({"top_p": 0}, 400, "top_p", "greater than 0"),
        ({"seed": -1}, 400, "seed", "greater than or equal to 0"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"messages": []}, 400, "messages", "at least 1"),
        ({"messages": "Good day."}, 400, "messages", "valid list"),
        ({"messages": [{"role": "user", "content": "word " * 99}]}, 400, "messages", "the model takes 96 tokens of prompt and answer"),
    ],
)
def test_requests_that_cannot_be_fulfilled_are_refused(wrong: dict, status: int, param: str, message: str, client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json=GOOD | wrong)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert message in error["message"] and error["type"] == "invalid_request_error" and error["code"]


def test_fields_that_change_nothing_are_accepted(client: TestClient) -> None:
    neutral = {"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, "store": False, "user": "anna", "stop": None}
    neutral |= {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True, "stream": False, "seed": None}
    assert client.post("/v1/chat/completions", json=GOOD | neutral).status_code == 200


def test_models_are_listed(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["m"] and listed["data"][0]["context_length"] == 96
    assert client.get("/v1/models/m").json()["created"] == 7
    for path in ("/v1/models/x", "/v1/engines"):
        assert client.get(path).status_code == 404 and client.get(path).json()["error"]["message"]


def test_a_full_queue_answers_with_the_time_to_retry(client: TestClient, chats: ChatQueue) -> None:
    chats._scheduler._accepted["m"] += 6
    try:
        answer = client.post("/v1/chat/completions", json=GOOD)
    finally:
        chats._scheduler._accepted["m"] -= 6
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1


def test_a_failure_after_the_first_text_ends_the_stream_with_an_error(
    client: TestClient, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = type(loaded.model).forward, list[int]()

    def fail_later(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return 1 / 0 if len(calls) > 15 else forward(*args, **kwargs)

    monkeypatch.setattr(type(loaded.model), "forward", fail_later)
    answer = client.post("/v1/chat/completions", json=GOOD | {"stream": True})
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.strip().split("\n\n")]
    assert answer.status_code == 200 and "[DONE]" not in answer.text
    assert events[-1]["error"]["type"] == "server_error" and events[0]["choices"]
    calls.extend([1] * 20)
    assert client.post("/v1/chat/completions", json=GOOD).status_code == 500
