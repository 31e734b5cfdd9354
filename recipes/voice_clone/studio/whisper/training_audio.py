"""The clips that the demo Whisper is trained on, at 16 kHz: the voices themselves, and what the demo codec makes of them.

What it judges will have gone through that codec: before it had heard any of it, 14.7 % of the words of reconstructions were wrong to it,
and 6.8 % of the same sentences' originals.
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

from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Samples, convert_to_int16, read_audio
from data_prep.audio_codecs.qwen3_tts import compute_codec_digest, find_codec, load_codec
from finetune.storage import files
from recipes.voice_clone.studio.codec.measure_codec import reconstructed
from recipes.voice_clone.studio.codec.pack_codec import NAME as CODEC

RECONSTRUCTED = 2
"""Of so many clips one is heard through the codec too."""

Pcm = NDArray[np.int16]
"""[samples] at `SPEECH_RATE`."""


class Sound(NamedTuple):
    """A clip of the corpus, or its reconstruction."""

    row: dict[str, Any]
    pcm: Pcm


def sounds(corpus: Path, rows: Sequence[dict[str, Any]]) -> list[Sound]:
    """All clips of `rows`, then the reconstructions of every `RECONSTRUCTED`-th one. Making them takes minutes, so they are kept beside the
    corpus, by what they were made of."""
    codec = find_codec(CODEC)
    key = hashlib.sha256("\n".join([compute_codec_digest(codec), *(row["audio"] for row in rows)]).encode()).hexdigest()[:16]
    again = rows[::RECONSTRUCTED]
    kept = corpus / f"heard-{key}.safetensors"
    if not kept.exists():
        tokenizer = load_codec(codec, "cpu")
        back = (reconstructed(tokenizer, wave)[: len(wave)] for wave in _waves(corpus, again))
        made = [_pcm(wave) for wave in itertools.chain(_waves(corpus, rows), back)]
        files.write_bytes(kept, save({"sound": np.concatenate(made), "lengths": np.array([len(one) for one in made])}))
    tensors = load_file(kept)
    pcm = np.split(tensors["sound"], np.cumsum(tensors["lengths"])[:-1])
    return [Sound(row, one) for row, one in zip([*rows, *again], pcm, strict=True)]


def _waves(corpus: Path, rows: Sequence[dict[str, Any]]) -> Iterator[Samples]:
    return (read_audio(corpus / row["audio"], MASTER_RATE).samples for row in rows)


def _pcm(wave: Samples) -> Pcm:
    return convert_to_int16(soxr.resample(wave, MASTER_RATE, SPEECH_RATE, quality="HQ"))
