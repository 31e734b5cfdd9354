"""Ratings of a model at an OpenAI-compatible address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from overtone.recipes.llm_grpo.options import Judge
from overtone.recipes.llm_grpo.rewards import judge_client
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError
from overtone.recipes.llm_grpo.rewards.judge_client import judge_answer, read_rating


class Replies:
    """What a server on this machine replies, and the requests that it got."""

    def __init__(self) -> None:
        self.status, self.content, self.stuck = 200, json.dumps({"choices": [{"message": {"content": "8"}}]}).encode(), threading.Event()
        self.stuck.set()
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []


@pytest.fixture
def replies() -> Iterator[tuple[Replies, Judge]]:
    found = Replies()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append((self.path, dict(self.headers), body))
            found.stuck.wait()
            self.send_response(found.status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(found.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found, Judge(url=f"http://127.0.0.1:{server.server_port}/v1/", model="judge", seconds=5.0, key_variable="A_JUDGE_KEY")
    found.stuck.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_rating_is_a_tenth_of_the_number(replies: tuple[Replies, Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    found, judge = replies
    monkeypatch.setenv("A_JUDGE_KEY", "secret")
    assert judge_answer(judge, "2 + 2?", "5", "4") == 0.8
    ((path, headers, body),) = found.requests
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret" and body["model"] == "judge"
    assert "2 + 2?" in body["messages"][1]["content"] and "Expected answer:\n4" in body["messages"][1]["content"]


def test_without_a_key_none_is_sent(replies: tuple[Replies, Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    found, judge = replies
    monkeypatch.delenv("A_JUDGE_KEY", raising=False)
    judge_answer(judge, "", "", None)
    assert "Authorization" not in found.requests[0][1] and "Expected" not in found.requests[0][2]["messages"][1]["content"]


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (500, b"", "HTTPError: HTTP Error 500"),
        (302, b"", "HTTPError: HTTP Error 302"),
        (200, b"not json", "JsonSyntaxError"),
        (200, b"[]", r"no choices\[0\]"),
        (200, b'{"choices": []}', r"no choices\[0\]"),
        (200, b'{"choices": [{"message": {"content": "good"}}]}', "no number from 0 to 10: 'good'"),
        (200, b" " * (2**20 + 1), "more than 1,048,576 bytes"),
    ],
)
def test_a_reply_without_a_rating_is_a_failure(replies: tuple[Replies, Judge], status: int, content: bytes, problem: str) -> None:
    found, judge = replies
    found.status, found.content = status, content
    with pytest.raises(RewardError, match=problem):
        judge_answer(judge, "", "", None)


def test_a_judge_that_does_not_reply_in_time_is_a_failure(replies: tuple[Replies, Judge]) -> None:
    found, judge = replies
    found.stuck.clear()
    with pytest.raises(RewardError, match="timed out"):
        judge_answer(judge.model_copy(update={"seconds": 0.2}), "", "", None)


def test_a_judge_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(RewardError, match="refused"):
        judge_answer(Judge(url="http://127.0.0.1:9/v1", model="judge"), "", "", None)


@pytest.mark.parametrize(("text", "rating"), [("10", 1.0), ("Rating: 7.5", 0.75), ("0", 0.0), ("3 out of 5 is 6", 0.6)])
def test_the_last_number_of_a_reply_is_the_rating(text: str, rating: float) -> None:
    assert read_rating(text) == rating


@pytest.mark.parametrize("text", ["11", "-1", "none", ""])
def test_a_number_outside_of_the_scale_is_a_failure(text: str) -> None:
    with pytest.raises(RewardError, match=f"no number from 0 to {judge_client.HIGHEST:g}"):
        read_rating(text)
