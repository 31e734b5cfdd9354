"""The judge of a run: what is refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.errors import UserError
from overtone.recipes.voice_grpo.clip_judge import check_judge, open_judge
from overtone.recipes.voice_grpo.options import ClipJudge
from tests.recipes.voice_grpo.clip_rewards import stand_in


def test_recordings_are_needed_of_each_speaker(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: Path("there"))
    with pytest.raises(UserError, match="options.judge.recordings is not set: .* as --options.judge.recordings data/me/val.jsonl"):
        check_judge(ClipJudge(), ["anna"])
    with pytest.raises(UserError, match=r"options.judge.recordings: .*train.jsonl has no recording of carl, dora; add rows with audio"):
        check_judge(ClipJudge(recordings=recordings), ["dora", "anna", "carl"])
    assert {item.speaker for item in check_judge(ClipJudge(recordings=recordings), ["anna"])} == {"anna", "bert"}


def test_rows_without_audio_are_no_recordings(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Good day.", "speaker": "anna"}) + "\n")
    with pytest.raises(UserError, match="has no recording of anna"):
        check_judge(ClipJudge(recordings=tmp_path / "texts.jsonl"), ["anna"])


def test_an_unknown_whisper_is_named_by_its_key(recordings: Path) -> None:
    with pytest.raises(UserError, match="options.judge.asr"):
        check_judge(ClipJudge(recordings=recordings, asr="no-such-model"), ["anna"])


def test_a_missing_encoder_is_named_by_its_key(recordings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    with pytest.raises(UserError, match="options.judge.speaker_model: resemblyzer is not installed; run: pip install"):
        check_judge(ClipJudge(recordings=recordings, asr="whisper-demo-en"), ["anna"])
    with pytest.raises(UserError, match="options.judge.speaker_model"):
        open_judge(ClipJudge(recordings=recordings, asr="whisper-demo-en", speaker_model=str(tmp_path / "nothing")))
