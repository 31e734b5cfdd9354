"""The examples of docs/api.md run in their order, with a tiny chat model and a voice of tones."""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import overtone
from overtone.finetune.recipe import discovery
from overtone.finetune.training import run
from tests.finetune import tiny
from tests.launch.launching import ROOT
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.speech.test_interface import write_rows
from tests.recipes.voice_clone.tones import TONES, tone_folder

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CHATS, VOICES = ([*re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)] for part in PAGE.split("\n## Voices\n"))
TINY = {
    "train.precision": "fp32",
    "train.lr": 1e-2,
    "train.global_batch_tokens": 60,
    "train.micro_tokens": 90,
    "train.steps": 4,
    "eval.every": 2,
    "checkpoint.every": 2,
    "log.trackers": [],
}
FUNCTIONS = [name for name in overtone.__all__ if name[0].islower()]


def test_each_function_has_an_example_whose_arguments_it_has() -> None:
    """Preparing a voice takes minutes and a Whisper model: of these examples, the names are checked here."""
    called = set[str]()
    for block in [*CHATS, *VOICES]:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "overtone":
                called.add(node.func.attr)
                given = {word.arg: None for word in node.keywords if word.arg is not None}
                inspect.signature(getattr(overtone, node.func.attr)).bind(*node.args, **given)
    assert called == {*FUNCTIONS} and len(PAGE.split()) <= 900


def run_examples(blocks: list[str], names: dict[str, Any]) -> None:
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/api.md, example {number}", "exec"), names)


def test_the_examples_of_chats_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "draw_curve", lambda *_: None)  # takes longer than the training
    base = tiny_runs.write_base(tmp_path / "base")
    (tmp_path / "my_chats").mkdir()
    texts = [
        {"messages": [{**turn, "content": f"{turn['content']} {at}"} for turn in row["messages"]]}
        for at in range(8)
        for row in tiny_runs.rows()
    ]
    (tmp_path / "my_chats" / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    small = "".join(f"settings[{key!r}] = {value!r}\n" for key, value in TINY.items())
    blocks = [block.replace("Qwen/Qwen3-1.7B", str(base)).replace("plan = ", f"{small}plan = ") for block in CHATS]
    names = dict[str, Any]()
    run_examples(blocks, names)
    assert (names["run"].state, names["run"].step) == ("finished", 4) and names["plan"].problems == ()
    assert names["choice"].step == names["run"].best and (tmp_path / "exports" / "mine" / "overtone.json").is_file()
    assert "finished" in capsys.readouterr().out and (tmp_path / "data" / "chats" / "report.html").is_file()


def test_the_examples_of_a_voice_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "_read_verbs_file", lambda *_: replace(tiny.RECIPE.inference, speech=lambda: TONES))
    (tmp_path / "data" / "me").mkdir(parents=True)
    (tmp_path / "exports").mkdir()
    exported = tone_folder(tmp_path / "exports" / "me")
    if not (exported / "overtone.json").exists():
        (exported / "overtone.json").write_text(json.dumps({"recipe": "voice_clone"}))
    write_rows(tmp_path / "data" / "me" / "val.jsonl", tmp_path / "data" / "me" / "clip.flac", "Low", "High")
    names: dict[str, Any] = {"overtone": overtone}
    run_examples(VOICES[1:], names)
    assert names["result"].page == tmp_path / "exports" / "me-evaluation" / "evaluation.html" and names["result"].page.is_file()
    assert (tmp_path / "hello.wav").is_file() and "| me | 2 |" in capsys.readouterr().out
