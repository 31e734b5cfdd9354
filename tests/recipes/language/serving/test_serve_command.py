"""Tests of `overtone.recipes.language.serving.serve_command`: real servers, and OpenAI's own client."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.serving import serve_command
from tests import raw_http
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.voice_clone.served import Served, server

USER = [{"role": "user", "content": tiny_runs.CHATS[0][0]}]


@pytest.fixture(scope="module")
def served(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    named = shutil.copytree(exported, tmp_path_factory.mktemp("served") / "mine")
    with server([named], tmp_path_factory.mktemp("temporary"), "--batch", "4", "--max-new-tokens", "60") as running:
        yield running


def test_the_client_gets_the_learned_answers_whole_and_streamed(served: Served) -> None:
    client = served.client()
    assert [model.id for model in client.models.list()] == ["mine"]
    for question, expected in tiny_runs.CHATS:
        messages: Any = [{"role": "user", "content": question}]
        whole = client.chat.completions.create(model="mine", messages=messages)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (expected, "stop")
        chunks = [*client.chat.completions.create(model="mine", messages=messages, stream=True, stream_options={"include_usage": True})]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected
        assert chunks[-2].choices[0].finish_reason == "stop" and chunks[-1].usage == whole.usage and whole.usage.completion_tokens > 3
    again = [*USER, client.chat.completions.create(model="mine", messages=USER).choices[0].message.model_dump(), *USER]
    assert client.chat.completions.create(model="mine", messages=again, max_tokens=3).usage.completion_tokens <= 3


def test_arguments_have_defaults() -> None:
    args = serve_command.make_serve_parser().parse_args(["--context", "99"])
    assert (args.context, args.max_new_tokens) == (99, 1024)


def test_a_stop_string_ends_the_answer_before_it(served: Served) -> None:
    expected = tiny_runs.CHATS[0][1]
    for stream in (False, True):
        answer = served.client().chat.completions.create(model="mine", messages=USER, stop=["never", expected[4:7]], stream=stream)
        text = "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
        assert text == expected[:4]


def test_clients_at_once_get_the_answers_of_each_alone(served: Served) -> None:
    def ask(seed: int) -> str:
        settings: dict[str, Any] = {} if seed % 2 else {"temperature": 1.5, "seed": seed}
        answer = served.client(retries=5).chat.completions.create(model="mine", messages=USER, max_tokens=20 + seed, **settings)
        return answer.choices[0].message.content

    alone, together = [ask(seed) for seed in range(6)], dict[int, str]()
    threads = [threading.Thread(target=lambda seed=seed: together.update({seed: ask(seed)})) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(6)] == alone and len({*alone}) > 1


def test_errors_are_the_clients_own_exceptions(served: Served) -> None:
    import openai

    client = served.client()
    with pytest.raises(openai.NotFoundError, match="models: mine"):
        client.chat.completions.create(model="other", messages=USER)
    with pytest.raises(openai.BadRequestError, match="the model takes 96 tokens") as caught:
        client.chat.completions.create(model="mine", messages=[{"role": "user", "content": "word " * 99}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="colour"):
        client.chat.completions.create(model="mine", messages=USER, extra_body={"colour": 1})


def test_the_server_reports_its_state_and_ends(exported: Path, tmp_path: Path) -> None:
    import openai

    proxy = ("--trusted-proxy", "127.0.0.2")
    with server([exported], tmp_path, "--batch", "1", *proxy, OVERTONE_TOKEN="a-token-of-20-letters") as running:
        raw_http.check_limits(running.port, "/v1/models", "Authorization: Bearer a-token-of-20-letters")
        for source, status in (("127.0.0.1", 200), ("127.0.0.2", 400)):
            with raw_http.connect(running.port, source) as connection:
                connection.sendall(raw_http.request("/health", "X-Forwarded-For: nonsense"))
                assert raw_http.read_status(connection) == status
        assert running.ask("/health")[0] == 200 and running.ask("/metrics")[0] == 401
        with pytest.raises(openai.AuthenticationError):
            running.client("wrong-token-of-letters").models.list()
        answer = running.client("a-token-of-20-letters").chat.completions.create(model=exported.name, messages=USER)
        assert answer.choices[0].message.content == tiny_runs.CHATS[0][1]
        assert running.end() == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch", "0"], "--batch 0 is too small"),
        (["--context", "0"], "--context 0 is too small"),
        (["--host", "0.0.0.0"], "set OVERTONE_TOKEN"),
    ],
)
def test_mistakes_are_reported_before_a_model_is_loaded(argv: list[str], message: str, exported: Path) -> None:
    with pytest.raises(UserError, match=message):
        serve_command.serve({"me": exported}, argv)


def test_models_need_a_chat_template(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="has no chat template"):
        serve_command.load_models({"bare": folder}, serve_command.make_serve_parser().parse_args([]), {})
