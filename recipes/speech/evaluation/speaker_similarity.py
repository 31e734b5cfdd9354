"""Speaker similarity: cosines between speaker vectors of a clip and of its speaker's real clips.

A cosine has no absolute meaning: it depends on the encoder, the microphone and the language. Each value is therefore put on a scale between
two values from the same data: of real clips and other clips of their speaker, and of real clips and other speakers.

The model's own encoder may overrate the model, because the model was trained with its speaker vectors. Therefore an independent encoder is
used as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.clips.speaker_similarity import LONGEST_SECONDS
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.data_prep.speakers.encoder_selection import open_voice_encoder
from overtone.data_prep.speakers.xvector_encoder import open_xvector_encoder
from overtone.finetune.errors import UserError

Vector = NDArray[np.float32]
OWN, SPECTRAL = "own encoder", "MFCC statistics"
COEFFICIENTS = 20


@dataclass(frozen=True)
class SimilarityEncoder:
    """A speaker encoder."""

    name: str
    vector: Callable[[Samples], Vector]
    """Samples [n] at 24 kHz, at most 30 s → speaker vector [H]."""
    shortest_seconds: float = 0.25
    """A shorter clip does not identify a voice."""


def load_own_encoder(encoder: SpeakerEncoder) -> SimilarityEncoder:
    """The speaker encoder of a base model. Raises `UserError` if its weights cannot be read."""
    return load_at_master_rate(OWN, encoder)


def mfcc_encoder() -> SimilarityEncoder:
    """Mean and standard deviation of 20 mel-frequency cepstral coefficients over time: the timbre of a voice, without trained weights.

    It separates low from high and dull from bright voices, but also different rooms; it does not replace a trained speaker encoder. It is
    for clips of several speakers: with one, the standardized vectors have a mean of zero, and a cosine to it means nothing.
    """
    return SimilarityEncoder(SPECTRAL, mfcc_statistics)


def load_independent_encoder(name: str) -> SimilarityEncoder:
    """A speaker verification model of transformers (an x-vector head, as in microsoft/wavlm-base-plus-sv): a folder or a hub name; or
    `resemblyzer`, if that package is installed.

    Raises `UserError` for anything else.
    """
    if name == resemblyzer_encoder.NAME:
        return load_resemblyzer_encoder()
    return load_at_master_rate(Path(name).name, open_xvector_encoder("--speaker-model", name))


def digest_independent_encoder(name: str) -> str:
    """The name of an encoder that a package contains; otherwise the digest of its weights: another folder can have the same name."""
    return name if name == resemblyzer_encoder.NAME else open_xvector_encoder("--speaker-model", name).digest


def load_resemblyzer_encoder() -> SimilarityEncoder:
    """The speaker encoder of the package resemblyzer. Raises `UserError` if it is not installed or its weights cannot be read."""
    return load_at_master_rate(resemblyzer_encoder.NAME, open_voice_encoder("--speaker-model", resemblyzer_encoder.NAME))


def load_at_master_rate(name: str, encoder: SpeakerEncoder) -> SimilarityEncoder:
    """An encoder that resamples to its own rate. Raises `UserError` if its weights cannot be read."""
    loaded = encoder.load()

    def embed_samples(samples: Samples) -> Vector:
        rate = loaded.sample_rate
        return loaded.embed(samples if rate == MASTER_RATE else soxr.resample(samples, MASTER_RATE, rate, quality="VHQ"))

    return SimilarityEncoder(name, embed_samples, loaded.shortest_seconds)


def mfcc_statistics(samples: Samples) -> Vector:
    """Vector [40] of samples [n] at 24 kHz, without the first coefficient, which is the loudness."""
    found = import_librosa().feature.mfcc(y=samples, sr=MASTER_RATE, n_mfcc=COEFFICIENTS + 1, n_fft=1024, hop_length=256)[1:]
    return np.concatenate([found.mean(axis=1), found.std(axis=1)]).astype(np.float32)


def embed(encoder: SimilarityEncoder, samples: Samples) -> Vector | None:
    """Speaker vector [H] of samples [n] at 24 kHz; None for a clip that is too short or silent. Raises `UserError` for damaged weights."""
    if len(samples) < encoder.shortest_seconds * MASTER_RATE or not samples.any():
        return None
    vector = encoder.vector(samples[: LONGEST_SECONDS * MASTER_RATE])
    if not np.isfinite(vector).all():
        raise UserError(f"the encoder {encoder.name!r} returned NaN or Inf: its weights are damaged; download the model again")
    return vector


@dataclass(frozen=True)
class SpeakerClipVectors:
    """Speaker vectors of the real clips of all speakers, by one encoder."""

    clips: Mapping[str, Mapping[Path, Vector]]
    """Speaker → clip → vector [H]."""
    standardized: bool
    """True if vectors are standardized over all real clips first, which statistics of the audio need and trained encoders do not."""

    @cached_property
    def _scale(self) -> tuple[Vector, Vector]:
        every = np.stack([vector for own in self.clips.values() for vector in own.values()])
        return every.mean(axis=0), np.maximum(every.std(axis=0), 1e-6)

    def similarity(self, vector: Vector, speaker: str, excluded: frozenset[Path] = frozenset()) -> float | None:
        """Cosine of a vector to the mean direction of the speaker's clips, without `excluded`; None if none is left."""
        others = [self._direction(other) for path, other in self.clips.get(speaker, {}).items() if path not in excluded]
        if not others:
            return None
        middle = np.sum(others, axis=0)
        return float(self._direction(vector) @ middle / max(float(np.linalg.norm(middle)), 1e-12))

    def between_speakers(self) -> list[float]:
        """Return the mean cosine of each real clip to all other speakers; empty if there is one speaker."""
        found = []
        for speaker, own in self.clips.items():
            others = [other for other in self.clips if other != speaker]
            for vector in own.values() if others else ():
                found.append(float(np.mean([self.similarity(vector, other) for other in others])))
        return found

    def _direction(self, vector: Vector) -> Vector:
        if self.standardized:
            middle, spread = self._scale
            vector = (vector - middle) / spread
        return vector / max(float(np.linalg.norm(vector)), 1e-12)


def group_vectors(encoder: SimilarityEncoder, clips: Mapping[str, Mapping[Path, Vector]]) -> SpeakerClipVectors:
    """The vectors of the real clips, which `encoder` computed."""
    return SpeakerClipVectors(clips, standardized=encoder.name == SPECTRAL)


def scale_position(value: float, stranger: float, same: float) -> float | None:
    """Position of a similarity between other speakers (0) and the speaker's own clips (1); None if these two are equal."""
    return (value - stranger) / (same - stranger) if same - stranger > 1e-3 else None
