"""The training clips of the demo Whisper at 16 kHz: the synthetic voices, and their reconstructions by the demo codec.

The speech that this Whisper will transcribe has gone through that codec. Before it was trained on codec output, its WER was 14.7 % on
reconstructions and 6.8 % on the originals.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soxr
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Samples, convert_to_int16, read_audio
from overtone.data_prep.audio_codecs.qwen3_tts_codec import compute_codec_digest, find_codec, load_codec
from overtone.finetune.storage import files
from workshop.demo_models.codec.measure_codec import reconstruct
from workshop.demo_models.codec.pack_codec import NAME as CODEC

RECONSTRUCTED = 2
"""Every n-th clip is also used after the codec."""

Pcm = NDArray[np.int16]
"""[samples] at `SPEECH_RATE`."""


class TrainingClip(NamedTuple):
    """A clip of the corpus, or its reconstruction."""

    row: dict[str, Any]
    pcm: Pcm


def load_clips(corpus: Path, rows: Sequence[dict[str, Any]]) -> list[TrainingClip]:
    """All clips of `rows`, then the reconstructions of every `RECONSTRUCTED`-th one. Computing them takes minutes, so they are cached in
    the corpus folder, by a digest of their inputs."""
    codec = find_codec(CODEC)
    key = hashlib.sha256("\n".join([compute_codec_digest(codec), *(row["audio"] for row in rows)]).encode()).hexdigest()[:16]
    reconstructed_rows = rows[::RECONSTRUCTED]
    cached = corpus / f"heard-{key}.safetensors"
    if not cached.exists():
        tokenizer = load_codec(codec, "cpu")
        reconstructions = (reconstruct(tokenizer, wave)[: len(wave)] for wave in _read_waves(corpus, reconstructed_rows))
        made = [_to_pcm(wave) for wave in itertools.chain(_read_waves(corpus, rows), reconstructions)]
        files.write_bytes(cached, save({"sound": np.concatenate(made), "lengths": np.array([len(one) for one in made])}))
    tensors = load_file(cached)
    pcm = np.split(tensors["sound"], np.cumsum(tensors["lengths"])[:-1])
    return [TrainingClip(row, one) for row, one in zip([*rows, *reconstructed_rows], pcm, strict=True)]


def _read_waves(corpus: Path, rows: Sequence[dict[str, Any]]) -> Iterator[Samples]:
    return (read_audio(corpus / row["audio"], MASTER_RATE).samples for row in rows)


def _to_pcm(wave: Samples) -> Pcm:
    return convert_to_int16(soxr.resample(wave, MASTER_RATE, SPEECH_RATE, quality="HQ"))
