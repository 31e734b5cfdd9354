"""Reference clips as input of the base's speaker encoder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import soxr

from overtone.data_prep.audio.waveform import AudioError, read_audio_unchanged
from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.finetune.errors import UserError

SAMPLE_RATE = 24000
"""Sample rate of the speaker encoder, in Hz."""


def read_reference_clip(path: Path) -> np.ndarray:
    """A reference clip as input of the encoder: [n] float32, mono, 24 kHz. Raises `UserError` if it cannot be read or is too short.

    The samples equal those that the stock package loads from the file, so that both compute the same vector. Therefore the DC offset is
    kept (5e-3 of full scale moves the vector by a tenth), and other rates are converted by the resampler that the package uses.
    """
    try:
        audio = read_audio_unchanged(path)
    except (AudioError, OSError) as error:
        raise UserError(f"reference clip {path} is not usable ({error}); create the clips again with `overtone voice`") from None
    if audio.seconds < qwen3_tts_speaker_encoder.SHORTEST:
        raise UserError(
            f"reference clip {path} lasts {audio.seconds:.2f} s, but the speaker encoder needs {qwen3_tts_speaker_encoder.SHORTEST} s; "
            "set ref_audio to a longer clip"
        )
    if audio.rate == SAMPLE_RATE:
        return audio.samples
    samples = soxr.resample(audio.samples, audio.rate, SAMPLE_RATE, quality="HQ")
    length = math.ceil(len(audio.samples) * (SAMPLE_RATE / audio.rate))  # as in librosa.resample, which rounds up and appends a zero
    return np.pad(samples[:length], (0, max(0, length - len(samples))))
