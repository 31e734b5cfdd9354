"""Speaker similarity: cosines between speaker vectors of a clip and of its speaker's real clips.

A cosine has no absolute meaning: it depends on the encoder, the microphone and the language. Every figure is therefore placed between two
others from the same data: real clips against other clips of their speaker, and real clips against clips of other speakers.

The model's own encoder provided the model's speaker vectors, so it may overrate it; an independent encoder is used beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from data_prep.audio.librosa_import import import_librosa
from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Samples
from data_prep.audio_codecs.interface import SpeakerEncoder
from data_prep.audio_codecs.model_resolver import resolve_model
from data_prep.clips.speaker_similarity import LONGEST_SECONDS
from finetune.errors import UserError
from finetune.storage.model_security import Kind, admit, load_pickled_weights

Vector = NDArray[np.float32]
PICKLED = "pytorch_model.bin"
SPEAKER_MODEL_FILES = ["*.json", "*.safetensors", PICKLED]
"""Files that are downloaded of a speaker model on the hub."""
OWN, SPECTRAL = "own encoder", "MFCC statistics"
COEFFICIENTS = 20
SHORTEST_SECONDS = 0.25
"""A shorter clip does not identify a voice."""


@dataclass(frozen=True)
class Encoder:
    """A speaker encoder."""

    name: str
    vector: Callable[[Samples], Vector]
    """Samples [n] at 24 kHz, at most 30 s → speaker vector [H]."""


def own(encoder: SpeakerEncoder) -> Encoder:
    """The speaker encoder of a base model. Raises `UserError` if its weights cannot be read."""
    loaded = encoder.load()

    def embed_samples(samples: Samples) -> Vector:
        rate = loaded.sample_rate
        return loaded.embed(samples if rate == MASTER_RATE else soxr.resample(samples, MASTER_RATE, rate, quality="VHQ"))

    return Encoder(OWN, embed_samples)


def spectral() -> Encoder:
    """Mean and standard deviation of 20 mel-frequency cepstral coefficients over time: the timbre of a voice, without trained weights.

    It separates low from high and dull from bright voices, but also rooms; it does not replace a trained speaker encoder.
    """
    return Encoder(SPECTRAL, mfcc_statistics)


def independent(name: str) -> Encoder:
    """A speaker verification model of transformers (an x-vector head, as in microsoft/wavlm-base-plus-sv): a folder or a hub name.

    Raises `UserError` for anything else.
    """
    import torch

    try:
        extractor, model = load_speaker_model(resolve_model("--speaker-model", name, SPEAKER_MODEL_FILES))
    except (OSError, ValueError, KeyError, UserError) as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"--speaker-model {name}: no speaker verification model of transformers ({first}); "
            "microsoft/wavlm-base-plus-sv is one, by this name or as a folder"
        ) from error

    def vector(samples: Samples) -> Vector:
        resampled = soxr.resample(samples, MASTER_RATE, SPEECH_RATE, quality="VHQ")
        with torch.inference_mode():
            found = model(**extractor(resampled, sampling_rate=SPEECH_RATE, return_tensors="pt")).embeddings[0]
        return found.float().numpy().copy()

    return Encoder(Path(name).name, vector)


def load_speaker_model(folder: Path) -> tuple[Any, Any]:
    """(feature extractor, model with an x-vector head) from a folder. Raises `UserError`, and the errors of transformers."""
    from transformers import AutoConfig, AutoFeatureExtractor, AutoModelForAudioXVector
    from transformers.models.auto.modeling_auto import MODEL_FOR_AUDIO_XVECTOR_MAPPING, MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES

    kind = Kind("a speaker verification model of transformers", frozenset(MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES))
    with admit(folder, kind) as clean:
        extractor: Any = AutoFeatureExtractor.from_pretrained(clean, trust_remote_code=False)
        model: Any
        if any(folder.glob("*.safetensors")):
            model = AutoModelForAudioXVector.from_pretrained(clean, trust_remote_code=False, use_safetensors=True)
        else:  # most published speaker models have no other file
            weights = load_pickled_weights(folder / PICKLED)
            shape = AutoConfig.from_pretrained(clean, trust_remote_code=False)
            built: Any = MODEL_FOR_AUDIO_XVECTOR_MAPPING[type(shape)]
            model = built.from_pretrained(None, config=shape, state_dict=weights, trust_remote_code=False)
        return extractor, model.eval()


def mfcc_statistics(samples: Samples) -> Vector:
    """Vector [40] of samples [n] at 24 kHz, without the coefficient of loudness."""
    found = import_librosa().feature.mfcc(y=samples, sr=MASTER_RATE, n_mfcc=COEFFICIENTS + 1, n_fft=1024, hop_length=256)[1:]
    return np.concatenate([found.mean(axis=1), found.std(axis=1)]).astype(np.float32)


def embed(encoder: Encoder, samples: Samples) -> Vector | None:
    """Speaker vector [H] of samples [n] at 24 kHz; None for a clip that is too short or silent. Raises `UserError` for damaged weights."""
    if len(samples) < SHORTEST_SECONDS * MASTER_RATE or not samples.any():
        return None
    vector = encoder.vector(samples[: LONGEST_SECONDS * MASTER_RATE])
    if not np.isfinite(vector).all():
        raise UserError(f"the encoder {encoder.name!r} returned NaN or Inf: its weights are damaged; download the model again")
    return vector


@dataclass(frozen=True)
class Voices:
    """Speaker vectors of the real clips of all speakers, by one encoder."""

    clips: Mapping[str, Mapping[Path, Vector]]
    """Speaker → clip → vector [H]."""
    centred: bool
    """Whether vectors are standardised over all real clips first. Statistics of sound need it, trained encoders do not."""

    @cached_property
    def _scale(self) -> tuple[Vector, Vector]:
        every = np.stack([vector for own in self.clips.values() for vector in own.values()])
        return every.mean(axis=0), np.maximum(every.std(axis=0), 1e-6)

    def likeness(self, vector: Vector, speaker: str, apart: frozenset[Path] = frozenset()) -> float | None:
        """Cosine of a vector to the mean direction of the speaker's clips, except those in `apart`; None if there are no others."""
        others = [self._direction(other) for path, other in self.clips.get(speaker, {}).items() if path not in apart]
        if not others:
            return None
        middle = np.sum(others, axis=0)
        return float(self._direction(vector) @ middle / max(float(np.linalg.norm(middle)), 1e-12))

    def strangers(self) -> list[float]:
        """For every real clip the mean cosine to all other speakers; empty if there is one speaker."""
        found = []
        for speaker, own in self.clips.items():
            others = [other for other in self.clips if other != speaker]
            for vector in own.values() if others else ():
                found.append(float(np.mean([self.likeness(vector, other) for other in others])))
        return found

    def _direction(self, vector: Vector) -> Vector:
        if self.centred:
            middle, spread = self._scale
            vector = (vector - middle) / spread
        return vector / max(float(np.linalg.norm(vector)), 1e-12)


def voices(encoder: Encoder, clips: Mapping[str, Mapping[Path, Vector]]) -> Voices:
    """The real clips' vectors, which `encoder` computed."""
    return Voices(clips, centred=encoder.name == SPECTRAL)


def scale_position(figure: float, stranger: float, same: float) -> float | None:
    """Position of a similarity between other speakers (0) and the speaker's own clips (1); None if these two are equal."""
    return (figure - stranger) / (same - stranger) if same - stranger > 1e-3 else None
