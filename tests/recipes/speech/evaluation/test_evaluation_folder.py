"""The folder of an evaluation: its default place, and what may be in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.evaluation_folder import check_out, choose_out


def test_an_evaluation_is_beside_its_model_and_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it was ./evaluation for every model, and the clips of the one before were gone."""
    monkeypatch.chdir(tmp_path)
    run, export = tmp_path / "runs" / "me", Path("exports") / "me"
    (step := run / "checkpoints" / "step-00000010").mkdir(parents=True)
    export.mkdir(parents=True)
    assert choose_out(run, None) == choose_out(step, None) == run / "evaluation"
    for number in ("", "-2", "-3"):
        out = choose_out(export, None)
        assert out == tmp_path / "exports" / f"me-evaluation{number}"
        (out / "clips").mkdir(parents=True)
        assert choose_out(export, None) == out, "one that was killed starts again"
        (out / "evaluation.json").touch()
        with pytest.raises(UserError, match=r"contains an evaluation \(evaluation.json\); choose another folder"):
            check_out(out)
        check_out(out, with_clips=True)
    assert choose_out(export, Path("mine")) == Path("mine")


def test_only_files_of_evaluations_are_replaced(tmp_path: Path) -> None:
    for name in ("evaluation.md", "seed-tts-eval.md", "clips", "scores", "export-30"):
        (tmp_path / name).touch()
    check_out(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"contains files that are not of an evaluation \(thesis.tex\)"):
        check_out(tmp_path)
