"""A conversation: what was said is given again, and can be forgotten."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from finetune.cli import chat
from finetune.errors import UserError
from recipes.llm_sft import chat_session, generation
from tests.recipes.llm_sft import tiny_runs


def conversation(folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[list[dict[str, Any]]]:
    """Types the lines; returns what each question was asked with."""
    seen: list[list[dict[str, Any]]] = []
    whole = chat_session.prompt_ids
    monkeypatch.setattr(chat_session, "prompt_ids", lambda row, tokenizer: (seen.append([*row["messages"]]), whole(row, tokenizer))[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert chat.main(["--model", str(folder), *argv]) == 0
    return seen


def test_it_answers_until_the_input_ends(exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (asked, said), (other, reply) = tiny_runs.CHATS
    conversation(exported, [asked, "", "/reset", other], monkeypatch)
    out = capsys.readouterr().out
    assert out.count("> ") == 5 and f"> {said}\n" in out and f"> {reply}\n" in out


def test_history_is_kept_and_forgotten(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = tiny_runs.CHATS[0]
    first, second, third = conversation(
        exported, [asked, "And?", "/reset", asked, "/exit", "never read"], monkeypatch, "--max-new-tokens", "8", "--system", "Be brief."
    )
    opening, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}
    assert first == third == [opening, question]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"] and second[-1]["content"] == "And?"


def test_tokens_are_printed_as_they_come(exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answerer = generation.load(exported)
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: printed.append("".join(map(str, words))))
    chat_session.reply(answerer, [{"role": "user", "content": "Who are you?"}], generation.Manner())
    assert "".join(printed) == "I am a machine." and len([piece for piece in printed if piece]) > 1


def test_a_question_that_is_too_long_is_not_kept(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, after = conversation(exported, ["boats " * 96, "Good day."], monkeypatch)
    assert len(after) == 1 and "96 positions; shorten it, or forget with /reset" in capsys.readouterr().out


def test_an_answer_can_be_broken_off(exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_session, "respond", interrupted)
    first, second = conversation(exported, ["Good day.", "Good day."], monkeypatch)
    assert first == second and "broken off and forgotten" in capsys.readouterr().out


def test_a_model_without_a_template_cannot_converse(exported: Path, tmp_path: Path) -> None:
    bare = tiny_runs.write_base(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template, so it cannot tell who speaks"):
        chat_session.chat(bare, [])
