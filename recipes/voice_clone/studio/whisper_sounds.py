"""The clips that the demo Whisper is trained on, at 16 kHz: the voices themselves, and what the demo codec makes of them.

A Whisper that never heard a codec hears twice as many words wrongly after one, and then says so of every model that speaks through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from data_prep.audio import MASTER_RATE, Samples
from data_prep.codec import encode, find_codec, load_codec
from finetune import files

RATE = 16_000
CODEC = "codec-demo"
RECONSTRUCTED = 2
"""Of so many clips one is heard through the codec too."""
AT_ONCE = 16
"""Clips in the codec at a time."""

Pcm = NDArray[np.int16]
"""[samples] at `RATE`."""


def sounds(clips: Sequence[Path], cache: Path) -> list[Pcm]:
    """All clips, then the reconstructions of every `RECONSTRUCTED`-th one; kept in `cache`, since making them takes minutes."""
    if not cache.exists():
        made = [*map(_heard, clips), *_reconstructed(clips[::RECONSTRUCTED])]
        files.write_bytes(cache, save({"sound": np.concatenate(made), "lengths": np.array([len(one) for one in made])}))
    kept = load_file(cache)
    return np.split(kept["sound"], np.cumsum(kept["lengths"])[:-1])


def _heard(clip: Path) -> Pcm:
    wave, rate = soundfile.read(clip, dtype="float32")
    return _pcm(wave, rate)


def _reconstructed(clips: Sequence[Path]) -> Iterator[Pcm]:
    tokenizer = load_codec(find_codec(CODEC), "cpu")
    for first in range(0, len(clips), AT_ONCE):
        yield from _through(tokenizer, [soundfile.read(clip, dtype="float32")[0] for clip in clips[first : first + AT_ONCE]])


def _through(tokenizer: Any, waves: Sequence[Samples]) -> Iterator[Pcm]:
    """Each as long as it was: the last frame's padding is cut off."""
    import torch

    codes = [{"audio_codes": torch.from_numpy(one.astype(np.int64))} for one in encode(tokenizer, waves)]
    for wave, again in zip(waves, tokenizer.decode(codes)[0], strict=True):
        yield _pcm(np.asarray(again[: len(wave)], dtype=np.float32), MASTER_RATE)


def _pcm(wave: Samples, rate: int) -> Pcm:
    return np.round(np.clip(soxr.resample(wave, rate, RATE, quality="HQ"), -1, 1) * 32767).astype(np.int16)
