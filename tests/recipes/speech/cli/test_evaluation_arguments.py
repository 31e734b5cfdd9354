"""Arguments of `eval-voice`: the encoder of the model, the output folder, and options of protocols."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD
from overtone.recipes.speech.cli.evaluation_arguments import check_out, choose_out, find_encoder, parse
from overtone.recipes.speech.evaluation.systems import System
from overtone.recipes.voice_clone.inference import synthesizer


def test_a_base_without_a_speaker_encoder_is_noted_but_damaged_weights_are_an_error(
    nano: Path, fresh: Any, export: Any, tmp_path: Path
) -> None:
    voice, damaged = export(fresh, "custom_voice", tmp_path / "me"), tmp_path / "damaged"
    (voice / CARD).write_text(json.dumps({"base": {"source": str(voice), "revision": None}}))
    found, notes = find_encoder(synthesizer.SPEECH, [System("me", voice, "named")])
    assert found is None and f"base of me {voice}: " in notes[0] and "only those have the speaker encoder" in notes[0]
    shutil.copytree(nano, damaged)
    (damaged / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="--base .*model.safetensors"):
        find_encoder(synthesizer.SPEECH, [System("damaged, zero-shot", damaged, "cloned")])


def test_options_of_a_protocol_need_one() -> None:
    assert parse(["--data", "x.jsonl"]).protocol is None
    with pytest.raises(UserError, match="--protocol-similarity is an option of a protocol; add --protocol seed-tts-eval"):
        parse(["--data", "x.jsonl", "--protocol-similarity", "x.pth"])


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
