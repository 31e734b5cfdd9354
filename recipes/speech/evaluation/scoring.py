"""Scores clips: transcripts by a Whisper model, similarity by speaker encoders, and measures of the audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, AudioError, Samples, read_audio
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.recipes.speech.evaluation import audio_measures, intelligibility, speaker_similarity
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import AlignedWord, ErrorCounts, Recognizer
from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder, SpeakerClipVectors
from overtone.recipes.speech.evaluation.systems import RECORDINGS, Take


@dataclass(frozen=True)
class ScoringModels:
    """The models that score the clips of an evaluation."""

    asr: Recognizer | None
    """None: no transcripts."""
    encoders: Sequence[tuple[SimilarityEncoder, SpeakerClipVectors]]
    """Each speaker encoder with its vectors of the real clips."""


@dataclass(frozen=True)
class ItemTranscript:
    """The transcript of a clip that should speak an item's text, compared with that text."""

    text: str | None = None
    """None: there is no recognizer, or it failed."""
    errors: ErrorCounts | None = None
    words: Sequence[AlignedWord] = ()
    again: bool = False
    """The value of `ScoredClip.transcribed_again`."""


def load_encoders(base: SpeakerEncoder | None, independent: str | None) -> list[SimilarityEncoder]:
    """The model's own encoder if a base is given, and an independent one by its name. Raises `UserError` for a model that is not a speaker
    encoder."""
    own = [speaker_similarity.load_own_encoder(base)] if base is not None else []
    return own if independent is None else [*own, speaker_similarity.load_independent_encoder(independent)]


def load_scoring_models(items: Sequence[Item], encoders: Sequence[SimilarityEncoder], asr: str | None) -> ScoringModels:
    """Load the Whisper model, and embed all recordings and reference clips with every encoder.

    Raises `UserError` for a language that the Whisper model does not support.
    """
    whisper = None if asr is None else intelligibility.load_whisper(asr)
    if whisper is not None:
        intelligibility.require_languages(whisper, {item.language for item in items})
    return ScoringModels(
        asr=whisper,
        encoders=[(encoder, speaker_similarity.group_vectors(encoder, embed_real_clips(encoder, items))) for encoder in encoders],
    )


def check_clips(items: Sequence[Item]) -> None:
    """Raises `UserError` for a recording or reference clip that cannot be decoded, before hours of generation."""
    for path in {path for item in items for path in (item.recording, item.reference) if path is not None}:
        read_clip(path)


def embed_real_clips(encoder: SimilarityEncoder, items: Sequence[Item]) -> dict[str, dict[Path, speaker_similarity.Vector]]:
    """Speaker → clip → vector [H], of recordings and reference clips, except those that are too short for a speaker vector."""
    vectors: dict[str, dict[Path, speaker_similarity.Vector]] = {}
    for item in items:
        own = vectors.setdefault(item.speaker, {})
        for path in {item.recording, item.reference} - {None, *own}:
            assert path is not None
            vector = speaker_similarity.embed(encoder, read_clip(path))
            if vector is not None:
                own[path] = vector
    return vectors


def similarity_between_speakers(models: ScoringModels) -> dict[str, float]:
    """Return encoder → mean similarity of real clips to other speakers; empty if the data has one speaker."""
    return {encoder.name: float(np.mean(cosines)) for encoder, voices in models.encoders if (cosines := voices.between_speakers())}


def score_all(takes: Mapping[str, Sequence[Take]], models: ScoringModels) -> dict[str, list[ScoredClip]]:
    """The scored clips of all systems. The recordings come first, because the others are compared with their durations."""
    real = {take.item.key: score(take, models, None) for take in takes.get(RECORDINGS, ())}
    scored = {RECORDINGS: list(real.values())}
    for name, own in takes.items():
        if name != RECORDINGS:
            seconds = {key: one.sound.seconds for key, one in real.items()}
            scored[name] = [score(take, models, seconds.get(take.item.key)) for take in sorted(own, key=lambda take: take.item.key)]
    return scored


def score(take: Take, models: ScoringModels, real_seconds: float | None) -> ScoredClip:
    """All measures of one clip."""
    samples = read_clip(take.path)
    said = ItemTranscript() if models.asr is None else transcribe_takes(models.asr, [samples], take.item)[0]
    similarities = {encoder.name: measure_similarity(encoder, voices, samples, take.item) for encoder, voices in models.encoders}
    sound = audio_measures.measure(samples)
    return ScoredClip(take.item, take.path, sound, take.ended, real_seconds, said.text, said.errors, said.words, similarities, said.again)


def transcribe_takes(asr: Recognizer, takes: Sequence[Samples], item: Item) -> list[ItemTranscript]:
    """Transcribe clips of an item, [n] at 24 kHz each, and compare with its text."""
    language, found = intelligibility.choose_language(asr, item.language), list[ItemTranscript]()
    for one in intelligibility.transcribe_clips(asr, takes, language):
        if one.problem:
            found.append(ItemTranscript(again=one.again))
            continue
        errors = intelligibility.count_errors(item.text, one.text, language)
        found.append(ItemTranscript(one.text, errors, intelligibility.align_words(item.text, one.text, language), one.again))
    return found


def describe_retries(clips: Sequence[ScoredClip]) -> list[str]:
    """A note if first transcripts of these clips were unsure; otherwise none."""
    again = sum(clip.transcribed_again for clip in clips)
    if not again:
        return []
    return [
        f"{again} of {len(clips)} first transcripts were unsure; each of these clips was transcribed at "
        f"{1 + len(intelligibility.RETRY_PAUSES)} places of Whisper's window, and the most probable transcript counts."
    ]


def describe_failures(scored: Mapping[str, Sequence[ScoredClip]], models: ScoringModels) -> list[str]:
    """A note for each system with clips that have no transcript, no word or no similarity, or whose first transcript was unsure."""
    notes = []
    for name, clips in scored.items():
        failed = sum(clip.transcript is None for clip in clips) if models.asr is not None else 0
        if failed:
            notes.append(f"{name}: the transcription failed for {failed} of {len(clips)} clips, which are excluded.")
        if wordless := sum(clip.transcript is not None and clip.errors is None for clip in clips):
            notes.append(f'{name}: {wordless} of {len(clips)} texts have no word for the WER, as "(laughs)" or "Hmm", and are not in it.')
        notes += [f"{name}: {note}" for note in describe_retries(clips)]
        for encoder, _ in models.encoders:
            without = sum(clip.similarities[encoder.name] is None for clip in clips)
            if without:
                notes.append(
                    f"{name}: {without} of {len(clips)} clips have no similarity by {encoder.name}: "
                    "they are silent or too short, or the data has no other clip of their speaker."
                )
    return notes


def read_clip(path: Path) -> Samples:
    """A clip as mono samples [n] at 24 kHz; it may be empty or silent. Raises `UserError` for one that cannot be read."""
    try:
        return read_audio(path, MASTER_RATE).samples
    except AudioError as error:
        if error.reason in ("silent", "empty"):
            return _silence_of(path)
        raise UserError(f"{path} cannot be used ({error}); make the clip again, or remove its row") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); restore it, or remove its row") from error


def _silence_of(path: Path) -> Samples:
    """Zeros [n] at 24 kHz, as long as the clip. `read` refuses silence because it is for training data, but a model may generate it."""
    input_files.require_regular(path)
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return np.zeros(round(len(samples) * MASTER_RATE / rate), np.float32)


def measure_similarity(encoder: SimilarityEncoder, voices: SpeakerClipVectors, samples: Samples, item: Item) -> float | None:
    """Cosine of `samples` [n] at 24 kHz to the other real clips of the item's speaker; None for silence or too short a clip, and without
    such clips."""
    vector = speaker_similarity.embed(encoder, samples)
    if vector is None:
        return None
    return voices.similarity(vector, item.speaker, excluded_clips(voices, item))


def excluded_clips(voices: SpeakerClipVectors, item: Item) -> frozenset[Path]:
    """The clips that an item's speech is not compared with: its recording, and the reference clip, which a clone may copy.

    The reference clip is included if the data has no other clip of the speaker.
    """
    own = frozenset(voices.clips.get(item.speaker, {}))
    both = frozenset(path for path in (item.recording, item.reference) if path is not None)
    return both if own - both else both - {item.reference}
