"""Clips in which a second person speaks at the same time: how many the rule `overlapped_speech` finds, and how many clean clips it loses.

Prompts of five people and sentences of three voices of flite, alone or with speech of another voice; the network was fitted, and its limit
chosen, on the English and the Italian prompts, of which the two fifths are used here that it was not fitted on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.clips.overlapped_speech import measure_overlap
from overtone.data_prep.clips.quality_rules import MOST_OVERLAP
from workshop.benchmarks import _overlap_fitting, _prompts, _table
from workshop.benchmarks._prompts import FLITE, RATE

TUNED, REPORTED = _overlap_fitting.TUNED, ("es", "fr", "ru", *FLITE)
PAIRS = {
    "tuned: en, it": (("en", "it"), ("it", "en"), ("en", "en"), ("it", "it")),
    "same sex: es fr ru; awb rms": (("es", "fr"), ("fr", "ru"), ("ru", "es"), ("awb", "rms")),
    "other sex: es fr ru slt with it awb rms": (("es", "it"), ("fr", "awb"), ("ru", "it"), ("rms", "slt"), ("awb", "fr")),
}
LEVELS = (0, 3, 6, 9, 12)
"""dB that the second voice is below the first."""
PARTS = {"all of the clip": 1.0, "half of the clip": 0.5}
NOISE_BELOW = 55.0
COLUMNS = ("clips", "clips of each kind", "rejected, %")
NOTE = (
    "`rejected` is the share of the clips with more than {limit:.0%} of their loud frames overlapped. Clips have 1.2 to 9 s. "
    "A second voice over half of a clip may fall into a pause of the first."
)
Spoil = Callable[[Samples, np.random.Generator], Samples]
SPOILED: dict[str, Spoil] = {
    "noise 10 dB below": lambda wave, chance: wave + _prompts.make_noise(len(wave), 10, chance),
    "music 25 dB below": lambda wave, chance: wave + _prompts.make_music(len(wave), 25, chance),
    "echo of 0.3 s, 6 dB below": lambda wave, chance: _prompts.add_echo(wave, 0.3, 6, chance),
    "echo of 0.3 s, as loud": lambda wave, chance: _prompts.add_echo(wave, 0.3, 0, chance),
    "telephone, 300 to 3400 Hz": lambda wave, _: _prompts.cut_band(wave, 300, 3400),
}


def main() -> None:
    flags = _table.read_flags(__doc__)
    if _prompts.is_missing():
        print(f"{_table.SKIPPED}needs recordings of known people: {_prompts.INSTALL}")
        return
    clean, mixed = (4, 2) if flags.quick else (80, 5)
    chance = np.random.default_rng(1)
    rows = [[f"clean, {voice}", *count_rejected(read_test_clips(voice)[:clean], chance)] for voice in (*TUNED, *REPORTED)]
    spoiled = [wave for voice in REPORTED for wave in read_test_clips(voice)[:mixed]]
    rows += [[f"one voice, {name}", *count_rejected([spoil(wave, chance) for wave in spoiled], chance)] for name, spoil in SPOILED.items()]
    for name, pairs in PAIRS.items():
        for place, part in PARTS.items():
            for below in LEVELS:
                waves = [wave for pair in pairs for wave in mix_pair(*pair, below, part, mixed, chance)]
                rows.append([f"{name}; second voice {below} dB below, {place}", *count_rejected(waves, chance)])
    _table.publish("overlapped_speech", flags, COLUMNS, rows, NOTE.format(limit=MOST_OVERLAP))


def read_test_clips(voice: str) -> list[Samples]:
    """Clips of a voice that the network was not fitted on."""
    return _overlap_fitting.take_tuning(voice) if voice in TUNED else _prompts.read_voice(voice)


def mix_pair(first: str, second: str, below: float, part: float, count: int, chance: np.random.Generator) -> list[Samples]:
    """Clips of the first voice with speech of the second one, of other clips if they are the same."""
    waves, pool = read_test_clips(first)[:count], read_test_clips(second)[-count:]
    return [wave + _prompts.make_second_voice(len(wave), pool, below, part, chance) for wave in waves]


def count_rejected(waves: Sequence[Samples], chance: np.random.Generator) -> tuple[int, str]:
    """(number of clips, percentage rejected) of samples at 16 kHz."""
    noisy = (wave + _prompts.make_noise(len(wave), NOISE_BELOW, chance) for wave in waves)
    found = [measure_overlap(np.asarray(soxr.resample(wave, RATE, MASTER_RATE), np.float32)) for wave in noisy]
    return len(found), f"{100 * np.mean([share is not None and share > MOST_OVERLAP for share in found]):.0f}"


if __name__ == "__main__":
    main()
