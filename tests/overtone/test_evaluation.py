"""`overtone.evaluate`: the evaluation of the verb."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import overtone
from overtone.finetune.recipe import discovery
from overtone.recipes.speech.cli import evaluate
from tests.finetune import tiny
from tests.recipes.speech.test_interface import write_rows
from tests.recipes.voice_clone.tones import TONES, tone_folder


@pytest.fixture
def voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inference = replace(tiny.RECIPE.inference, speech=lambda: TONES)
    monkeypatch.setattr(discovery, "_read_verbs_file", lambda *_: inference)
    return tone_folder(tmp_path / "my tones")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "my rows.jsonl", tmp_path / "clip.flac", "Low", "High")


def without_places(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "settings": {key: value for key, value in record["settings"].items() if key != "out"}}


def test_the_results_are_those_of_the_verb(voice: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = overtone.evaluate(str(voice), data, max_seconds=0.5, recipe="voice_clone", out=tmp_path / "mine")
    assert found.folder == tmp_path / "mine" and found.page.is_file() and str(found) == (found.folder / "evaluation.md").read_text()
    assert found.figures["my tones"]["all"]["runaways"] == 100 and found.figures["my tones"]["all"]["texts"] == 2
    assert found.verdicts == ("Whether training helped is unknown: there is no base to compare with. Give it with --base FOLDER.",)
    assert any("no --asr was given" in note for note in found.notes)
    shown = capsys.readouterr().out
    assert "my tones: 2 of 2 texts spoken" in shown and found.verdicts[0] not in shown, "progress, without the result"
    assert evaluate.evaluate(TONES, voice, ["--data", str(data), "--max-seconds", "0.5", "--out", str(tmp_path / "verb")]) == 0
    assert f"{found.verdicts[0]}\n" in capsys.readouterr().out
    record = json.loads((tmp_path / "verb" / "evaluation.json").read_text())
    assert without_places(record) == without_places(json.loads(json.dumps(found.record)))


def test_results_are_beside_the_export_and_never_replaced(voice: Path, data: Path) -> None:
    async def evaluate_in_a_notebook() -> list[str]:
        return [overtone.evaluate(voice, data, max_seconds=0.1, recipe="voice_clone").folder.name for _ in range(2)]

    assert asyncio.run(evaluate_in_a_notebook()) == ["my tones-evaluation", "my tones-evaluation-2"]


def test_what_cannot_be_evaluated_is_an_error(voice: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*tmp_path.iterdir()}
    for given, message in (
        ({"batch": 0}, "--batch 0: must be at least 1"),
        ({"max_seconds": float("nan")}, "--max-seconds nan: must be more than 0"),
        ({"asr": tmp_path / "none.pt"}, r"--asr .*none.pt: "),
        ({"seen": tmp_path / "none.jsonl"}, "none.jsonl"),
        ({"reference": tmp_path / "none.wav"}, "--reference .*none.wav: no such file"),
        ({"checkpoints": [1, 2]}, "is one exported model"),
        ({"strength": 0.5}, "--strength 0.5: .* is exported already"),
        ({"out": data}, "contains files that are not of an evaluation"),
    ):
        with pytest.raises(overtone.UserError, match=message):
            overtone.evaluate(voice, data, recipe="voice_clone", **given)  # type: ignore[arg-type]
    with pytest.raises(overtone.UserError, match="none.jsonl"):
        overtone.evaluate(voice, tmp_path / "none.jsonl", recipe="voice_clone")
    with pytest.raises(overtone.UserError, match="no such folder"):
        overtone.evaluate(tmp_path / "none", data)
    monkeypatch.setattr(discovery, "_read_verbs_file", lambda *_: tiny.RECIPE.inference)
    with pytest.raises(overtone.UserError, match="the recipe .* has no evaluation of voices; train with data.val"):
        overtone.evaluate(voice, data, recipe=tiny.FOLDER)
    assert {*tmp_path.iterdir()} == before
