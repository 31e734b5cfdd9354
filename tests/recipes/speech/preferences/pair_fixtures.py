"""What the tests of pairs share: an untrained voice, recordings, and a stand-in for Whisper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.intelligibility import Transcription
from overtone.recipes.speech.preferences import speech_judge
from overtone.recipes.speech.selection.speech_endings import SpeechEnding
from tests.recipes.voice_clone.conftest import Ready, make_export

LINES = "She counted the boats.\nIt is never late!\n"


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace Whisper by a stand-in that transcribes one of the lines or nothing, depending on the samples, and let each clip fade out;
    returns the sizes of the transcribed clips."""
    heard = list[int]()

    def transcribe(samples: np.ndarray) -> Transcription:
        heard.append(len(samples))
        return Transcription(["", *LINES.split("\n")[:2]][int(np.abs(samples).sum() * 1e4) % 3])

    monkeypatch.setattr(intelligibility, "check_whisper", lambda _: None)
    monkeypatch.setattr(intelligibility, "digest_whisper", lambda _: "of the stand-in")
    monkeypatch.setattr(intelligibility, "load_whisper", lambda _: None)
    monkeypatch.setattr(intelligibility, "require_languages", lambda *_: None)
    monkeypatch.setattr(intelligibility, "choose_language", lambda _, language: language)
    monkeypatch.setattr(intelligibility, "transcribe_clips", lambda _, clips, __: [*map(transcribe, clips)])
    monkeypatch.setattr(speech_judge, "measure_ending", lambda _: SpeechEnding(0.1, -40.0))
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    return heard


def write_voice(ready: Ready, folder: Path) -> list[str]:
    """An export, two lines and the recordings in `folder`; returns the arguments of `overtone pairs` without --out."""
    export = make_export(ready, "base", folder / "export")
    (folder / "lines.txt").write_text(LINES)
    data = ready.config.data.train
    words = [str(export), "--texts", str(folder / "lines.txt"), "--data", str(data), "--asr", "stand-in", "--speaker", "anna"]
    words += ["--recipe", "voice_clone"]
    return [*words, "--temperature", "1.0", "--top-k", "0", "--max-seconds", "2", "--samples", "3", "--margin", "0.01", "--max-wer", "9"]
