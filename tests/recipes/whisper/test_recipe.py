"""The recipe's interface: config files, plan, rows that are refused, and what a run learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from overtone.finetune.cli import plan
from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.trained_parameters import choose_trained
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.recipes.whisper.model import modeling
from overtone.recipes.whisper.options import Options
from overtone.recipes.whisper.recipe import RECIPE, load
from overtone.recipes.whisper.state import WhisperState
from tests.recipes.whisper.tiny_whisper import FOLDER, make_config, train_here, write_tone


def test_the_recipe_is_found_by_name() -> None:
    assert find_recipe("whisper") == FOLDER and load_recipe(FOLDER) is RECIPE


def test_the_config_files_are_valid() -> None:
    real = resolve("whisper", Options, [FOLDER / "config.yaml"], [])
    assert real.model.source == "openai/whisper-small" and real.options.time_masks == 2
    debug = resolve("whisper", Options, [FOLDER / "config.yaml", FOLDER / "debug.yaml"], [])
    assert debug.options.language == "english" and debug.train.precision == "fp32"


def test_a_run_learns_and_counts_clips(full_run: Path) -> None:
    steps = [event for event in read_log(full_run / LOG) if event["event"] == "step"]
    assert steps[0]["tokens"] == 4 and steps[-1]["loss"] < steps[0]["loss"] - 0.1


def test_a_plan_needs_no_data_and_counts_clips(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path, base)
    foreseen = estimate_run(config, RECIPE)
    assert foreseen.unit == "clips" and foreseen.misfits == ()
    one, more = (foreseen.activations(count, "none", 1) for count in (2, 4))
    assert more.flops == pytest.approx(2 * one.flops, rel=0.05)
    words = ["--model.source", str(base), "--data.train", str(tmp_path / "train.jsonl"), "--run.dir", str(tmp_path / "other")]
    assert plan.main(["--recipe", "whisper", "--show-batch", *words]) == 0
    printed = capsys.readouterr().out
    assert "<|startoftranscript|><|en|><|transcribe|><|notimestamps|> |  Good day.<|endoftext|>; 0.43 s with silence" in printed


def test_a_clip_that_is_too_long_is_named_with_its_line(base: Path, tmp_path: Path) -> None:
    make_config(tmp_path, base)
    write_tone(tmp_path / "clips" / "long.flac", seconds=31)
    with (tmp_path / "val.jsonl").open("a") as file:
        file.write(json.dumps({"audio": "clips/long.flac", "text": "Long.", "language": "english"}) + "\n")
    with pytest.raises(UserError, match=r"val\.jsonl:5: the clip 'long.flac' has 31.00 s, and Whisper takes 30 s"):
        train_here(tmp_path, base)


def test_a_missing_clip_is_named_with_its_line(base: Path, tmp_path: Path) -> None:
    make_config(tmp_path, base)
    (tmp_path / "clips" / "2.flac").unlink()
    with pytest.raises(UserError, match=r"train\.jsonl:3: 'clips/2.flac' cannot be read in"):
        train_here(tmp_path, base)


def test_the_state_has_the_language_and_the_task_of_the_options(base: Path, english_base: Path, tmp_path: Path) -> None:
    german = make_config(tmp_path, base, ("options.language", "German"), ("options.task", "translate"))
    assert load(german).state == WhisperState(language="de", task="translate")
    english = load(make_config(tmp_path, english_base, ("options.language", "English")))
    assert english.state == WhisperState(language=None, task="transcribe")
    with pytest.raises(UserError, match="the language is 'German', and the base knows English alone"):
        load(make_config(tmp_path, english_base, ("options.language", "German")))


@pytest.mark.parametrize(("frozen", "adapted"), [("false", 6 + 2 * 10), ("true", 2 * 10)])
def test_a_frozen_encoder_gets_no_adapters(frozen: str, adapted: int, base: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, base, ("options.freeze_encoder", frozen), ("model.lora", "{rank: 4}"))
    loaded = load(config)
    choose_trained(loaded, RECIPE, config.model, torch.float32)
    trained = [name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * adapted and any(name.startswith(modeling.ENCODER) for name in trained) == (frozen == "false")
