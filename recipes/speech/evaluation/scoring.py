"""Scoring of clips: transcripts by a Whisper, similarity by speaker encoders, and measures of sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.audio.waveform import MASTER_RATE, AudioError, Samples, read_audio
from data_prep.audio_codecs.interface import SpeakerEncoder
from finetune.errors import UserError
from recipes.speech.evaluation import audio_measures as sound
from recipes.speech.evaluation import intelligibility as hearing
from recipes.speech.evaluation import speaker_similarity as likeness
from recipes.speech.evaluation.evaluation_texts import Item
from recipes.speech.evaluation.metrics import Scored
from recipes.speech.evaluation.speaker_similarity import Encoder, Voices
from recipes.speech.evaluation.systems import RECORDINGS, Take


@dataclass(frozen=True)
class Listeners:
    """The models that score the clips of an evaluation."""

    asr: Any
    """A Whisper, or None."""
    encoders: Sequence[tuple[Encoder, Voices]]
    """Each speaker encoder with its vectors of the real clips."""


def load_encoders(base: SpeakerEncoder | None, independent: str | None) -> list[Encoder]:
    """The model's own encoder, if a base is given, and one that the model was not made with. Raises `UserError` for what is no encoder."""
    own = [likeness.own(base)] if base is not None else []
    return [*own, likeness.spectral() if independent is None else likeness.independent(independent)]


def load_listeners(items: Sequence[Item], encoders: Sequence[Encoder], asr: str | None) -> Listeners:
    """Load the Whisper, and embed all recordings and reference clips with every encoder.

    Raises `UserError` for a language that the Whisper does not know.
    """
    whisper = None if asr is None else hearing.load(asr)
    if whisper is not None:
        hearing.require_languages(whisper, {item.language for item in items})
    return Listeners(
        asr=whisper,
        encoders=[(encoder, likeness.voices(encoder, embed_real_clips(encoder, items))) for encoder in encoders],
    )


def check_clips(items: Sequence[Item]) -> None:
    """Raise `UserError` for a recording or reference clip that cannot be decoded, before hours of speech depend on it."""
    for path in {path for item in items for path in (item.recording, item.reference) if path is not None}:
        samples_of(path)


def embed_real_clips(encoder: Encoder, items: Sequence[Item]) -> dict[str, dict[Path, likeness.Vector]]:
    """Speaker → clip → vector [H], of recordings and reference clips; without those that are too short for a speaker vector."""
    vectors: dict[str, dict[Path, likeness.Vector]] = {}
    for item in items:
        own = vectors.setdefault(item.speaker, {})
        for path in {item.recording, item.reference} - {None, *own}:
            assert path is not None
            vector = likeness.embed(encoder, samples_of(path))
            if vector is not None:
                own[path] = vector
    return vectors


def similarity_of_strangers(listeners: Listeners) -> dict[str, float]:
    """By encoder: the mean similarity of real clips to other speakers; without encoders for which the data has one speaker."""
    return {encoder.name: float(np.mean(cosines)) for encoder, voices in listeners.encoders if (cosines := voices.strangers())}


def score_all(takes: Mapping[str, Sequence[Take]], listeners: Listeners) -> dict[str, list[Scored]]:
    """The scored clips of all systems. The recordings come first, because the others are compared with their durations."""
    real = {take.item.key: score(take, listeners, None) for take in takes.get(RECORDINGS, ())}
    scored = {RECORDINGS: list(real.values())}
    for name, own in takes.items():
        if name != RECORDINGS:
            seconds = {key: one.sound.seconds for key, one in real.items()}
            scored[name] = [score(take, listeners, seconds.get(take.item.key)) for take in sorted(own, key=lambda take: take.item.key)]
    return scored


def score(take: Take, listeners: Listeners, real_seconds: float | None) -> Scored:
    """Everything that is measured of one clip."""
    samples = samples_of(take.path)
    transcript, errors = None, None
    if listeners.asr is not None:
        language = hearing.language_of(listeners.asr, take.item.language)
        found = hearing.listen(listeners.asr, samples, language)
        transcript = None if found.problem else found.text
        errors = None if transcript is None else hearing.compare(take.item.text, transcript, language)
    similarities = {encoder.name: _similarity(encoder, voices, samples, take.item) for encoder, voices in listeners.encoders}
    return Scored(take.item, take.path, sound.measure(samples), take.ended, real_seconds, transcript, errors, similarities)


def describe_failures(scored: Mapping[str, Sequence[Scored]], listeners: Listeners) -> list[str]:
    """A note for each system with clips that have no transcript or no similarity."""
    notes = []
    for name, clips in scored.items():
        failed = sum(clip.transcript is None for clip in clips) if listeners.asr is not None else 0
        if failed:
            notes.append(f"{name}: the recogniser failed on {failed} of {len(clips)} clips; they count neither for nor against it.")
        for encoder, _ in listeners.encoders:
            without = sum(clip.similarities[encoder.name] is None for clip in clips)
            if without:
                notes.append(
                    f"{name}: {without} of {len(clips)} clips have no similarity by {encoder.name}: "
                    "they are silent or too short, or the data has no other clip of their speaker."
                )
    return notes


def samples_of(path: Path) -> Samples:
    """A clip as mono samples [n] at 24 kHz, also if it is empty or silent. Raises `UserError` for one that cannot be read."""
    try:
        return read_audio(path, MASTER_RATE).samples
    except AudioError as error:
        if error.reason in ("silent", "empty"):
            return _silence_of(path)
        raise UserError(f"{path} cannot be used ({error}); make the clip again, or remove its row") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); restore it, or remove its row") from error


def _silence_of(path: Path) -> Samples:
    """Zeros [n] at 24 kHz, as long as the clip: `read` refuses silence, which is no training data, but a model may generate it."""
    import soundfile

    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return np.zeros(round(len(samples) * MASTER_RATE / rate), np.float32)


def _similarity(encoder: Encoder, voices: Voices, samples: Samples, item: Item) -> float | None:
    vector = likeness.embed(encoder, samples)
    if vector is None:
        return None
    return voices.likeness(vector, item.speaker, excluded_clips(voices, item))


def excluded_clips(voices: Voices, item: Item) -> frozenset[Path]:
    """The clips that an item's speech is not compared with: its recording, and the clip that it was cloned from, which a clone may echo.

    The latter stays in if the data has no other clip of the speaker.
    """
    own = frozenset(voices.clips.get(item.speaker, {}))
    both = frozenset(path for path in (item.recording, item.reference) if path is not None)
    return both if own - both else both - {item.reference}
