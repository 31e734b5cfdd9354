"""A stand-in for Whisper and for the speaker encoder, and runs with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.data_prep.transcription import whisper_memory
from overtone.finetune.config import Config, resolve
from overtone.recipes.speech.evaluation import intelligibility, speaker_similarity
from overtone.recipes.speech.evaluation.intelligibility import Transcription
from overtone.recipes.voice_grpo.options import Options

ROWS = [
    {"text": text, "speaker": speaker, "language": "english"}
    for text in ("She counted the boats.", "It is never late!", "Who is there?")
    for speaker in ("anna", "bert")
]


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Whisper by a stand-in that transcribes a part of a text, depending on the samples, and the encoder by one without
    weights."""

    def transcribe_clips(_: Any, clips: Sequence[np.ndarray], __: str) -> list[Transcription]:
        words = ["She", "counted", "the", "boats", "It", "is", "never", "late"]
        return [Transcription(" ".join(words[: int(np.abs(samples).sum() * 1e4) % len(words)])) for samples in clips]

    monkeypatch.setattr(intelligibility, "check_whisper", lambda *_: None)
    monkeypatch.setattr(intelligibility, "digest_whisper", lambda _: "of the stand-in")
    monkeypatch.setattr(whisper_memory, "count_gpu_bytes", lambda *_: 1000)
    monkeypatch.setattr(intelligibility, "load_whisper", lambda _: None)
    monkeypatch.setattr(intelligibility, "require_languages", lambda *_: None)
    monkeypatch.setattr(intelligibility, "choose_language", lambda _, language: language)
    monkeypatch.setattr(intelligibility, "transcribe_clips", transcribe_clips)
    monkeypatch.setattr(speaker_similarity, "load_independent_encoder", lambda _: speaker_similarity.mfcc_encoder())
    monkeypatch.setattr(speaker_similarity, "digest_independent_encoder", lambda name: name)


def configure(base: Path, recordings: Path, folder: Path, **overrides: object) -> Config[Options]:
    """A run of two steps, each of three texts, with groups of three short clips."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given = {
        **{"run.dir": folder / "run", "model.source": base, "data.train": folder / "texts.jsonl", "train.steps": 2},
        **{"train.precision": "fp32", "train.micro_tokens": 300, "train.global_batch_tokens": 400, "log.trackers": "[]"},
        **{"train.lr": "1e-3", "log.every": 1, "train.warmup": 0.0, "train.schedule": "constant", "options.group": 3},
        **{"options.max_seconds": 1.0, "options.rollout_batch": 4, "options.judge.recordings": recordings},
        **{"options.judge.speaker_model": "a stand-in", "options.judge.asr": "a-stand-in"},
        **overrides,
    }
    return resolve("voice_grpo", Options, [], [(key, str(value)) for key, value in given.items()])
