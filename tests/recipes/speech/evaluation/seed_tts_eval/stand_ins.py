"""The inputs of the golden score files: sounds, weights and transcripts that are made by formula, so that only their description is kept.

`golden.json` has what the published scripts printed for these inputs: those of BytedanceSpeech/seed-tts-eval at 752f429, the WavLM of
s3prl/s3prl at ec8064b, jiwer 3.0.5, zhon 2.1.1, zhconv 1.4.3, torchaudio 2.11. Its stand-ins for the published models are the transcripts
in it, and a similarity model of the published structure with two small layers and the weights of `make_weights`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

GOLDEN = Path(__file__).with_name("golden.json")


def read_golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def make_wave(seed: int, samples: int, channels: int = 1) -> NDArray[np.int16]:
    """[samples, channels] 16-bit sound of two sawtooth tones under a slow swell, by integer arithmetic alone."""
    at = np.arange(samples, dtype=np.int64)
    sounds = []
    for channel in range(channels):
        low, high = 97 + 31 * seed + 17 * channel, 23 + 7 * seed
        tone = (at * 65_536 // low) % 65_536 - 32_768 + ((at * 65_536 // high) % 65_536 - 32_768) // 2
        swell = np.abs((at * 5) % 16_000 - 8_000)
        sounds.append((tone // 3 * swell // 8_000).astype(np.int16))
    return np.stack(sounds, axis=1)


def write_wave(path: Path, description: Mapping[str, int]) -> None:
    """`description`: seed, samples, rate, channels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = make_wave(description["seed"], description["samples"], description["channels"])
    soundfile.write(path, wave, description["rate"], subtype="PCM_16")


def make_weights(shapes: Mapping[str, list[int]]) -> dict[str, NDArray[Any]]:
    """A value for each named weight: random, of a size at which signals neither vanish nor grow; scales of norms are near 1."""
    made: dict[str, NDArray[Any]] = {}
    for name, shape in shapes.items():
        chance = np.random.default_rng(zlib.crc32(name.encode()))
        if name.endswith("num_batches_tracked"):
            made[name] = np.array(1, np.int64)
            continue
        found = chance.standard_normal(shape, np.float32)
        if name.endswith(("running_var", "weight_g", "grep_a")):
            found = 1 + 0.1 * np.abs(found)
        elif len(shape) == 1:
            found = 0.02 * found + (1 if name.endswith("weight") else 0)
        else:
            found = found * np.float32(2.0 / np.sqrt(np.prod(shape[1:])))
        made[name] = found.astype(np.float32)
    return made
