"""Tests of `tests.model_sweep`: a wrong number and a traceback are found, and what was found last has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.model_sweep import __main__ as command
from tests.model_sweep import sweep
from tests.model_sweep.architectures import ARCHITECTURES
from tests.model_sweep.sweep import RIGHT, Verdict

TABLES = sorted(command.RESULTS.glob("model_sweep_*.json"))


def test_one_sentence_is_a_refusal_and_anything_else_is_wrong() -> None:
    assert sweep.refusal("loading …\nerror: this model cannot be packed; set data.packing: false\n").acceptable
    assert not sweep.refusal("Traceback (most recent call last):\n  …\nKeyError: 'x'\n").acceptable
    assert not sweep.refusal("error: one\nerror: two\n").acceptable


@pytest.mark.parametrize(("loss", "kind"), [(2.0, RIGHT), (2.0001, RIGHT), (2.01, "WRONG")])
def test_the_loss_of_the_first_step_is_compared_with_that_of_the_rows(
    loss: float, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "log.jsonl").write_text(json.dumps({"event": "step", "loss": loss}) + "\n", encoding="utf-8")
    (tmp_path / "expected").write_text("2.0", encoding="utf-8")
    monkeypatch.setattr(sweep, "run_verb", lambda *_: (0, ""))
    assert sweep.train(tmp_path, "full").kind == kind


def test_a_traceback_is_wrong_and_what_depends_on_it_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> Verdict:
        raise KeyError("x")

    monkeypatch.setattr(sweep, "write_base", lambda *_: None)
    monkeypatch.setattr(sweep, "compute_stock_loss", lambda _: 1.0)
    (tmp_path / "base").mkdir()
    for verb in sweep.VERBS:
        monkeypatch.setitem(sweep.VERBS, verb, fail)
    found = sweep.try_architecture("llama", tmp_path)
    assert found["full"].kind == "WRONG" and "KeyError: 'x' (test_sweep.py:" in found["full"].reason
    assert found["export"].kind == found["generate"].kind == "refused"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_nothing_was_wrong_when_the_tables_were_written(path: Path) -> None:
    table = json.loads(path.read_text("utf-8"))
    assert table and table.keys() <= ARCHITECTURES.keys()
    wrong = [(name, verb) for name, found in table.items() for verb, each in found.items() if not Verdict(*each).acceptable]
    assert wrong == []


def test_both_lines_of_transformers_have_a_table() -> None:
    assert len(TABLES) == 2
    assert [path.stem.removeprefix("model_sweep_")[0] for path in TABLES] == ["4", "5"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama4_text", "qwen3_moe", "gpt_oss", "lfm2", "bamba", "falcon_h1", "mamba"])
def test_an_architecture_is_right_or_refused(name: str) -> None:
    found = command.try_apart(name)
    assert [(verb, each) for verb, each in found.items() if not each.acceptable] == []
    assert found["full"].kind == RIGHT and found["export"].kind == RIGHT
