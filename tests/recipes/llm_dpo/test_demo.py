"""Tests of `overtone.recipes.llm_dpo.demo`; `make demo-preferences` runs the whole demo."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overtone.recipes.llm_dpo import demo
from tests.launch.launching import ROOT


def test_the_demo_runs_the_commands_of_a_user_in_order(tmp_path: Path) -> None:
    stages = demo.make_commands(tmp_path)
    assert list(stages) == ["base", "chats", "chat", "pairs", "preferred"]
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert "--recipe llm_sft" in words["chats"] and "--recipe llm_dpo" in words["pairs"]
    assert f"--model.source {tmp_path / 'chat'} " in words["pairs"] and "-m overtone export" in words["preferred"]


def test_no_question_is_in_two_files_and_chats_have_both_forms() -> None:
    files = {name: [json.loads(line) for line in text.splitlines()] for name, text in demo.write_task(0).items()}
    asked = [row["messages"][0]["content"] for row in files["chats.jsonl"]]
    asked += [row["prompt"][0]["content"] for name in ("pairs.jsonl", "held_out.jsonl") for row in files[name]]
    assert len(asked) == len({*asked}) == demo.CHATS + demo.PAIRS + demo.HELD_OUT
    with_dashes = sum("-" in row["messages"][1]["content"] for row in files["chats.jsonl"])
    assert 0.4 < with_dashes / demo.CHATS < 0.6
    for row in files["pairs.jsonl"] + files["held_out.jsonl"]:
        assert demo.PREFERRED.fullmatch(row["chosen"][0]["content"]) and not demo.PREFERRED.fullmatch(row["rejected"][0]["content"])
    assert demo.write_task(0) == demo.write_task(0) != demo.write_task(1)


@pytest.mark.parametrize(("text", "preferred"), [("K-L-A-D", True), ("KLAD", False), ("K-L-A-", False), ("K-L A", False), ("K", False)])
def test_the_judge_wants_a_dash_between_all_letters(text: str, preferred: bool) -> None:
    assert (demo.PREFERRED.fullmatch(text) is not None) == preferred


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_learns_the_preference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert demo.main() == 0
    figures = json.loads((tmp_path / "runs" / "demo-preferences" / "summary.json").read_text())
    assert 0.1 <= figures["preferred_before"] <= 0.9 and figures["preferred_after"] >= 0.95 and figures["accuracy"] >= 0.95
