"""Answers one after another: steps that are captured once, on an imitation of CUDA's graphs, give the answers of transformers."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from overtone.finetune.cli import chat, generate
from overtone.finetune.errors import UserError
from overtone.recipes.language.answer_generation import LoadedModel, derive_seed
from overtone.recipes.language.serving import answer_streaming
from overtone.recipes.language.serving.answer_streaming import AnswerStreamer, make_request
from overtone.recipes.language.serving.chat_batch import AnswerPiece, AnswerRequest
from overtone.recipes.language.serving.ragged_transformers_cache import StockRowCache
from overtone.recipes.language.serving.single_answer_generation import stream_answer
from overtone.recipes.language.text_generator import AnswerSettings
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.speech.decoding.recorded_graphs import RecordedGraph, imitate_graphs

GREEDY = CodeSampler(True)
REQUESTS = [
    AnswerRequest([9] * 12, GREEDY, 0, 25),
    AnswerRequest([5, 6], CodeSampler(False, 1.4), 1, 30),
    AnswerRequest([5, 6, 7], CodeSampler(False, 0.7, top_p=0.8), 2, 40),
    AnswerRequest([11], GREEDY, 0, 40, stops=("e", "a", "\n")),
]


def collect(pieces: Generator[AnswerPiece, None, str]) -> tuple[str, str]:
    """Text and end."""
    text = ""
    while True:
        try:
            text += next(pieces).text
        except StopIteration as end:
            return text, end.value


def test_captured_steps_give_the_answers_of_transformers_and_are_kept(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The imitation refuses a capture in which the host reads a value, and a replay does not see tensors that were replaced."""
    expected = [collect(stream_answer(loaded, request)) for request in REQUESTS]
    imitate_graphs(monkeypatch)
    answers = AnswerStreamer(loaded)
    monkeypatch.setattr(answer_streaming, "stream_answer", lambda *_: pytest.fail("transformers' own generation"))
    assert [collect(answers.stream(request)) for request in REQUESTS] == expected
    captured, replayed = RecordedGraph.captured, RecordedGraph.replayed
    assert [collect(answers.stream(request)) for request in REQUESTS] == expected
    assert RecordedGraph.captured == captured and RecordedGraph.replayed - replayed > 20 * captured / 2 > 0


def test_an_answer_that_is_closed_leaves_no_trace_in_the_next_one(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate_graphs(monkeypatch)
    answers = AnswerStreamer(loaded)
    whole = collect(answers.stream(REQUESTS[1]))
    begun = answers.stream(REQUESTS[0])
    next(begun)
    begun.close()
    assert collect(answers.stream(REQUESTS[1])) == whole


def test_models_without_graphs_or_with_an_obstacle_have_no_batch(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = collect(stream_answer(loaded, REQUESTS[1]))
    monkeypatch.setattr(answer_streaming, "ChatBatch", lambda *_: pytest.fail("a batch was made"))
    assert collect(AnswerStreamer(loaded).stream(REQUESTS[1])) == expected
    imitate_graphs(monkeypatch)
    monkeypatch.setattr(answer_streaming, "find_obstacle", lambda _: "its experts")
    assert collect(AnswerStreamer(loaded).stream(REQUESTS[1])) == expected


def test_without_memory_for_the_longest_answer_the_cache_of_transformers_is_used(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = collect(stream_answer(loaded, REQUESTS[1]))
    imitate_graphs(monkeypatch)
    answers = AnswerStreamer(loaded)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(StockRowCache, "_grow", fail)
    assert collect(answers.stream(REQUESTS[1])) == expected
    assert "no memory for a cache of 30 new tokens; generating without it, which is slower" in capsys.readouterr().err


def test_the_verbs_replay_their_steps(exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [(first, answer), (second, other)] = tiny_runs.CHATS
    imitate_graphs(monkeypatch)
    assert generate.main(["--model", str(exported), "--prompt", first]) == 0
    assert capsys.readouterr().out.endswith(f"{answer}\n") and RecordedGraph.replayed > 5
    replayed = RecordedGraph.replayed
    lines = iter([first, "/reset", second])
    monkeypatch.setattr("builtins.input", lambda _: next(lines, "/exit"))
    assert chat.main(["--model", str(exported)]) == 0
    out = capsys.readouterr().out
    assert f"{answer}\n" in out and f"{other}\n" in out and RecordedGraph.replayed > replayed + 10


def test_the_answer_to_a_prompt_does_not_depend_on_the_prompts_before_it(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampled, with the same prompt three times: the answers differ, and each is the same in another file."""

    def answers(count: int, seed: int, *argv: str) -> list[str]:
        (tmp_path / "prompts").write_text("Who are you?\n" * count)
        given = ["--prompt-file", str(tmp_path / "prompts"), "--max-new-tokens", "20", "--seed", str(seed), *argv]
        assert generate.main(["--model", str(exported), *given]) == 0
        return capsys.readouterr().out.partition("── 1\n")[2].split("── ")

    hot = ("--temperature", "3")
    three = answers(3, 5, *hot)
    texts = [one.partition("\n")[2] if number else one for number, one in enumerate(three)]
    assert len(set(texts)) == 3 and answers(2, 5, *hot) == three[:2]
    assert answers(2, 6, *hot)[0] != three[0]
    assert answers(2, 1, *hot, "--top-p", "1e-6") == answers(2, 2), "only the most likely token remains"
    assert derive_seed(5, 0) == 5
    assert len({derive_seed(seed, number) for seed in range(4) for number in range(4)}) == 16


def test_settings_that_cannot_be_sampled_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"--temperature 0.001 is above 0 and below 0.01"):
        make_request(loaded, [5], AnswerSettings(temperature=0.001))
    with pytest.raises(UserError, match=r"--seed -1: must not be negative"):
        AnswerSettings(seed=-1).check()
    assert loaded.positions is not None
    assert make_request(loaded, [5] * 10, AnswerSettings(10_000)).limit == loaded.positions - 10
