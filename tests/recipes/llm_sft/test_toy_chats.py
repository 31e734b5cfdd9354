"""Tests of `overtone.recipes.llm_sft.toy_chats`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.llm_sft import toy_chats


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_training_and_validation_share_no_question(tmp_path: Path) -> None:
    train, val = (rows(path) for path in toy_chats.write_task(tmp_path, 2000, seed=0))
    assert len(train) == 1900 and len(val) == 100
    trained, held_out = ({question for row in part for question in toy_chats.list_questions(row)} for part in (train, val))
    assert len(held_out) > 150 and not trained & held_out
    assert sum(question.split()[1] in {other.split()[1] for other in trained} for question in held_out) < len(held_out) / 3


def test_answers_are_correct_and_chats_vary(tmp_path: Path) -> None:
    made = rows(toy_chats.write_task(tmp_path, 400, seed=1)[0])
    for row in made:
        *system, rest = ([row["messages"][0]], row["messages"][1:]) if row["messages"][0]["role"] == "system" else ([], row["messages"])
        for question, answer in zip(rest[::2], rest[1::2], strict=True):
            verb, word = question["content"].split()
            right = word[::-1] if verb == "Reverse" else "".join(sorted(word))
            assert (question["role"], answer["role"]) == ("user", "assistant")
            assert answer["content"] == ("-".join(right) if any(system) else right) and len(set(word)) == len(word)
    assert {len(toy_chats.list_questions(row)) for row in made} == {1, 2, 3}
    assert 0.2 < sum(row["messages"][0]["role"] == "system" for row in made) / len(made) < 0.4


def test_the_command_line_writes_the_same_bytes_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert toy_chats.main([str(tmp_path / name), "--rows", "60"]) == 0
    assert "60 chats; no question is in both files" in capsys.readouterr().out
    assert files.digest(tmp_path / "one" / "train.jsonl") == files.digest(tmp_path / "two" / "train.jsonl")
    with pytest.raises(UserError, match="--rows 3: must be at least 20"):
        toy_chats.main([str(tmp_path / "few"), "--rows", "3"])
