"""The judge of a run: what is refused before anything is loaded."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.torch import load_file, save_file

from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.errors import UserError
from overtone.recipes.voice_grpo.clip_judge import check_models, digest_judge, open_judge, read_recordings
from overtone.recipes.voice_grpo.options import ClipJudge
from tests.recipes.voice_grpo.clip_rewards import stand_in


def test_recordings_are_needed_of_each_speaker(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    with pytest.raises(UserError, match="options.judge.recordings is not set: .* as --options.judge.recordings data/me/val.jsonl"):
        read_recordings(ClipJudge(), ["anna"])
    with pytest.raises(UserError, match="options.judge.recordings is not set"):
        check_models(ClipJudge())
    with pytest.raises(UserError, match=r"options.judge.recordings: .*train.jsonl has no recording of carl, dora; add rows with audio"):
        read_recordings(ClipJudge(recordings=recordings), ["dora", "anna", "carl"])
    assert {item.speaker for item in read_recordings(ClipJudge(recordings=recordings), ["anna"])} == {"anna", "bert"}


def test_rows_without_audio_are_no_recordings(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Good day.", "speaker": "anna"}) + "\n")
    with pytest.raises(UserError, match="has no recording of anna"):
        read_recordings(ClipJudge(recordings=tmp_path / "texts.jsonl"), ["anna"])


def test_an_unknown_whisper_is_named_by_its_key(recordings: Path) -> None:
    with pytest.raises(UserError, match="options.judge.asr"):
        check_models(ClipJudge(recordings=recordings, asr="no-such-model"))


def test_a_missing_encoder_is_named_by_its_key(recordings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    with pytest.raises(UserError, match="options.judge.speaker_model: resemblyzer is not installed; run: pip install"):
        check_models(ClipJudge(recordings=recordings, asr="whisper-demo-en"))
    with pytest.raises(UserError, match="options.judge.speaker_model"):
        check_models(ClipJudge(recordings=recordings, asr="whisper-demo-en", speaker_model=str(tmp_path / "nothing")))


def test_a_language_of_the_texts_that_whisper_lacks_is_refused_when_the_judge_opens(recordings: Path, tiny_speaker_model: Path) -> None:
    judge = ClipJudge(recordings=recordings, asr="whisper-demo-en", speaker_model=str(tiny_speaker_model))
    assert open_judge(judge, ["anna"], ["auto", "english"]).rates.keys() >= {"anna"}
    with pytest.raises(UserError, match="options.judge.asr: whisper-demo-en: a text in german: this Whisper model is English-only"):
        open_judge(judge, ["anna"], ["english", "german"])


def test_a_speaker_whose_recordings_are_silent_is_refused_when_the_judge_opens(tmp_path: Path, tiny_speaker_model: Path) -> None:
    soundfile.write(tmp_path / "silence.flac", np.zeros(24_000, np.float32), 24_000)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "Good day.", "speaker": "anna", "audio": "silence.flac"}) + "\n")
    judge = ClipJudge(recordings=tmp_path / "rows.jsonl", asr="whisper-demo-en", speaker_model=str(tiny_speaker_model))
    with pytest.raises(UserError, match="speaker 'anna': no recording with sound"):
        open_judge(judge, ["anna"], [])


def test_a_judge_is_known_by_the_content_of_its_models_and_clips(recordings: Path, tmp_path: Path, tiny_speaker_model: Path) -> None:
    folder = tmp_path / "others"
    shutil.copytree(tiny_speaker_model, folder / tiny_speaker_model.name)
    weights = folder / tiny_speaker_model.name / "model.safetensors"
    judge = ClipJudge(recordings=recordings, asr="whisper-demo-en", speaker_model=str(tiny_speaker_model))
    items = read_recordings(judge, ["anna"])
    first, moved = digest_judge(judge, items), judge.model_copy(update={"speaker_model": str(weights.parent)})
    assert digest_judge(moved, items) == first
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})
    other = digest_judge(moved, items)
    assert other["speaker_model"] != first["speaker_model"] and other["speaker_model_name"] == first["speaker_model_name"]
    referred = [replace(item, reference=recordings) for item in items]
    assert digest_judge(judge, referred)["recordings"] != first["recordings"], "a reference clip moves the similarity"
