"""Tests of `overtone.recipes.language.cli.chat_session`."""

from __future__ import annotations

import io
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.cli import chat
from overtone.finetune.errors import UserError
from overtone.recipes.language import answer_generation
from overtone.recipes.language.cli import chat_session
from overtone.recipes.language.serving.answer_streaming import AnswerStreamer
from overtone.recipes.language.serving.chat_batch import AnswerPiece
from overtone.recipes.language.text_generator import AnswerSettings
from tests.recipes.llm_sft import tiny_runs


def conversation(folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[list[dict[str, Any]]]:
    """Enter the lines; returns the messages that were given to generation for each of them."""
    seen: list[list[dict[str, Any]]] = []
    whole = chat_session.tokenize_prompt
    monkeypatch.setattr(chat_session, "tokenize_prompt", lambda row, tokenizer: (seen.append([*row["messages"]]), whole(row, tokenizer))[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert chat.main(["--model", str(folder), *argv]) == 0
    return seen


def test_lines_are_answered_until_the_input_ends(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, answer), (second, other_answer) = tiny_runs.CHATS
    conversation(exported, [first, "", "/reset", second], monkeypatch)
    out = capsys.readouterr().out
    assert out.count("> ") == 5 and f"> {answer}\n" in out and f"> {other_answer}\n" in out


def test_a_reset_starts_a_new_conversation(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, _ = tiny_runs.CHATS[0]
    first, second, third = conversation(
        exported, [line, "And?", "/reset", line, "/exit", "never read"], monkeypatch, "--max-new-tokens", "8", "--system", "Be brief."
    )
    opening, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": line}
    assert first == third == [opening, question]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"] and second[-1]["content"] == "And?"


def test_tokens_are_printed_when_they_are_generated(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = answer_generation.load_model(exported)
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: printed.append("".join(map(str, words))))
    chat_session.answer_last(AnswerStreamer(loaded), [{"role": "user", "content": "Who are you?"}], AnswerSettings(), 0)
    assert "".join(printed) == "I am a machine." and len([piece for piece in printed if piece]) > 1


def test_a_question_that_is_too_long_is_not_kept(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, after = conversation(exported, ["boats " * 96, "Good day."], monkeypatch)
    assert len(after) == 1 and "96 positions; shorten the prompt, or start a new conversation with /reset" in capsys.readouterr().out


def test_an_interrupted_answer_is_not_kept(exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = list[bool]()

    def interrupted(*_: Any) -> Generator[AnswerPiece, None, str]:
        try:
            yield AnswerPiece("Go", 1)
            raise KeyboardInterrupt
        finally:
            stopped.append(True)

    monkeypatch.setattr(AnswerStreamer, "stream", interrupted)
    first, second = conversation(exported, ["Good day.", "Good day."], monkeypatch)
    assert first == second and "Go (stopped; the question and this answer are not kept" in capsys.readouterr().out
    assert stopped == [True, True]


def test_each_sampled_answer_has_random_numbers_of_its_own(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = ("--temperature", "3", "--max-new-tokens", "20")

    def answers(*argv: str) -> list[str]:
        conversation(exported, ["Who are you?", "/reset", "Who are you?"], monkeypatch, *hot, *argv)
        return capsys.readouterr().out.split("> ")[1:]

    first = answers("--seed", "1")
    assert first == answers("--seed", "1") != answers("--seed", "2") and len(set(first)) == len(first)


def test_a_model_without_a_chat_template_is_refused(exported: Path, tmp_path: Path) -> None:
    bare = tiny_runs.write_base(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="has no chat template, so it cannot chat"):
        chat_session.chat(bare, [])
