"""Clips of several languages are transcribed in batches, each as it would be alone."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.whisper.inference.clip_transcription import Clip, load_model, transcribe_clips
from overtone.recipes.whisper.model.sequence_layout import compute_features
from tests.recipes.whisper.tiny_whisper import make_tone


def test_a_clip_in_a_batch_is_transcribed_as_alone(exported: Path) -> None:
    model = load_model(exported)
    clips = [
        Clip(compute_features(make_tone(number, 0.2), 80), language, "transcribe") for number, language in enumerate(("en", "de", "en"))
    ]
    together = transcribe_clips(model, clips)
    assert together == [transcribe_clips(model, [clip])[0] for clip in clips] and all(together)
    assert transcribe_clips(model, []) == []
