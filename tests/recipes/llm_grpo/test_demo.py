"""Tests of `overtone.recipes.llm_grpo.demo`; `make demo-rewards` runs the whole demo."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overtone.recipes.llm_grpo import demo
from tests.launch.launching import ROOT


def test_the_demo_runs_the_commands_of_a_user_in_order(tmp_path: Path) -> None:
    stages = demo.make_commands(tmp_path)
    assert list(stages) == ["base", "chats", "weak", "rewards", "strong"]
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert "--recipe llm_sft" in words["chats"] and "--recipe llm_grpo" in words["rewards"]
    assert f"--model.source {tmp_path / 'weak'} " in words["rewards"] and "-m overtone export" in words["strong"]


def test_no_question_is_in_two_files_and_answers_are_right() -> None:
    files = {name: [json.loads(line) for line in text.splitlines()] for name, text in demo.write_task(0).items()}
    words = [row["messages"][0]["content"].split()[1] for row in files["chats.jsonl"]]
    words += [row["prompt"][0]["content"].split()[1] for name in ("prompts.jsonl", "held_out.jsonl") for row in files[name]]
    assert len(words) == len({*words}) == demo.CHATS + demo.PROMPTS + demo.HELD_OUT
    for row in files["held_out.jsonl"]:
        verb, word = row["prompt"][0]["content"].split()
        assert row["answer"] == (word[::-1] if verb == "Reverse" else "".join(sorted(word)))
    assert demo.write_task(0) == demo.write_task(0) != demo.write_task(1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_learns_from_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert demo.main() == 0
    figures = json.loads((tmp_path / "runs" / "demo-rewards" / "summary.json").read_text())
    assert 0.5 <= figures["exact_before"] <= 0.7 and figures["exact_after"] >= 0.95
    assert figures["largest_mismatch"] < 1e-4
