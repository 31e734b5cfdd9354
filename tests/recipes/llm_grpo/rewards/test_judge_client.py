"""Ratings of a model at an OpenAI-compatible address."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.llm_grpo.options import Judge
from overtone.recipes.llm_grpo.rewards import judge_client
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError
from overtone.recipes.llm_grpo.rewards.judge_client import JudgeClient, read_rating


class Replies:
    """What a server on this machine replies, and the requests that it got."""

    def __init__(self) -> None:
        self.status, self.content, self.stuck = 200, json.dumps({"choices": [{"message": {"content": "8"}}]}).encode(), threading.Event()
        self.stuck.set()
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Replies, Judge]]:
    found = Replies()
    monkeypatch.setenv("A_JUDGE_KEY", "secret\n")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append((self.path, dict(self.headers), body))
            found.stuck.wait()
            self.send_response(found.status)
            self.send_header("Location", "http://127.0.0.1:9/other")
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


def test_the_rating_is_a_tenth_of_the_number(replies: tuple[Replies, Judge]) -> None:
    found, judge = replies
    assert JudgeClient(judge).rate("2 + 2?", "5", "4") == 0.8
    ((path, headers, body),) = found.requests
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret" and body["model"] == "judge"
    assert "2 + 2?" in body["messages"][1]["content"] and "Expected answer:\n4" in body["messages"][1]["content"]


def test_without_a_key_none_is_sent(replies: tuple[Replies, Judge]) -> None:
    found, judge = replies
    JudgeClient(judge.model_copy(update={"key_variable": None})).rate("", "", None)
    assert "Authorization" not in found.requests[0][1] and "Expected" not in found.requests[0][2]["messages"][1]["content"]


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (500, b"", "HTTPError: HTTP Error 500"),
        (302, b"", "HTTPError: HTTP Error 302"),
        (200, b"not json", "JsonSyntaxError"),
        (200, b"[]", r"no choices\[0\]"),
        (200, b'{"choices": []}', r"no choices\[0\]"),
        (200, b'{"choices": [{"message": {"content": "good"}}]}', "not one number from 0 to 10: 'good'"),
        (200, b" " * (2**20 + 1), "more than 1,048,576 bytes"),
    ],
)
def test_a_reply_without_a_rating_is_a_failure(replies: tuple[Replies, Judge], status: int, content: bytes, problem: str) -> None:
    found, judge = replies
    found.status, found.content = status, content
    with pytest.raises(RewardError, match=problem):
        JudgeClient(judge).rate("", "", None)


def test_a_judge_that_does_not_reply_in_time_is_a_failure(replies: tuple[Replies, Judge]) -> None:
    found, judge = replies
    found.stuck.clear()
    with pytest.raises(RewardError, match="had not ended after 0.2 s"):
        JudgeClient(judge.model_copy(update={"seconds": 0.2})).rate("", "", None)


def test_a_judge_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(RewardError, match="refused"):
        JudgeClient(Judge(url="http://127.0.0.1:9/v1", model="judge")).rate("", "", None)


@pytest.mark.parametrize("kind", ["a header", "a body in parts", "a TLS handshake"])
def test_the_limit_of_time_covers_a_reply_that_comes_byte_by_byte(kind: str) -> None:
    first = {"a header": b"HTTP/1.1 200 OK\r\nX: ", "a body in parts": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"}.get(
        kind, b""
    )
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(first or b"\x16\x03\x03\x3f\xff")
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"0")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        scheme = "http" if first else "https"
        judge = Judge(url=f"{scheme}://127.0.0.1:{server.getsockname()[1]}/v1", model="judge", seconds=0.3)
        with pytest.raises(RewardError, match="TimeoutError: the reply had not ended after 0.3 s"):
            JudgeClient(judge).rate("", "", None)
        stop.set()
        thread.join()


def test_an_error_has_no_key(replies: tuple[Replies, Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    found, judge = replies
    found.content = json.dumps({"choices": [{"message": {"content": "I got Bearer secret."}}]}).encode()
    with pytest.raises(RewardError, match=r"I got Bearer \*\*\*\."):
        JudgeClient(judge).rate("", "", None)
    for key, problem in (("", "is not set"), ("\n", "is not set"), ("sec\nret", "contains characters"), ("sécret", "contains characters")):
        monkeypatch.setenv("A_JUDGE_KEY", key)
        with pytest.raises(UserError, match=f"key_variable: the environment variable A_JUDGE_KEY {problem}") as caught:
            JudgeClient(judge)
        assert "ret" not in str(caught.value).replace("characters", "")


def test_a_link_local_judge_is_refused() -> None:
    with pytest.raises(UserError, match=r"169\.254\.169\.254 is a link-local address"):
        JudgeClient(Judge(url="http://169.254.169.254/v1", model="judge"))


@pytest.mark.parametrize(
    ("text", "rating"),
    [("10", 1.0), ("Rating: 7.5", 0.75), ("0", 0.0), ("3/10", 0.3), ("Rating: 3 / 10.", 0.3), ("**7 out of 10**", 0.7), ("10/10", 1.0)],
)
def test_the_only_number_of_a_reply_is_the_rating(text: str, rating: float) -> None:
    assert read_rating(text) == rating


@pytest.mark.parametrize(
    "text", ["11", "-1", "−1", "-2/10", "none", "", "3/5", "3 out of 5", "3/100", "8-9", "8,5", "80%", "8%", "1 or 2", "٣ or 4", "3 of 10"]
)
def test_any_other_reply_is_a_failure(text: str) -> None:
    with pytest.raises(RewardError, match=f"not one number from 0 to {judge_client.HIGHEST:g}"):
        read_rating(text)
