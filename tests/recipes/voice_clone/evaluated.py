"""An evaluation with figures that are known, of clips that are real files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.evaluation_items import SEEN, UNSEEN, Item
from overtone.recipes.speech.evaluation.intelligibility import AlignedWord, ErrorCounts
from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip
from overtone.recipes.speech.evaluation.results import Evaluation
from overtone.recipes.speech.evaluation.systems import RECORDINGS, System

MARKUP = "</script><img src=x onerror=alert(1)>"
BASE = "base, zero-shot"
WRONG = [AlignedWord("boat", "goat"), AlignedWord("lost", ""), AlignedWord("", MARKUP)]
"""A substituted, a missing and an inserted word."""
TEXTS = 12
STEPS = {"step 100": 0.9, "step 200": 0.7, "step 300": 0.5}
"""How long the clips of each checkpoint last, against the recordings: faster with every one, as shifted labels make them."""


def sound_file(path: Path, seconds: float) -> Path:
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(round(24_000 * seconds)) / 24_000)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_flac(Audio(wave.astype(np.float32), 24_000)))
    return path


def clips(folder: Path, name: str, stretch: float, wrong: int, like: float) -> list[ScoredClip]:
    """Twelve texts, six of them new."""
    return [
        ScoredClip(
            item=Item(f"eval-{at:02d}", f"{MARKUP} text {at}", "anna", "english", group=UNSEEN if at < TEXTS // 2 else SEEN),
            path=sound_file(folder / name / f"{at}.flac", 0.3 * stretch),
            sound=AudioMeasures(2.0 * stretch, 0.5 * stretch, 0.0),
            ended=not (name == BASE and at == 0),
            real_seconds=2.0,
            transcript=f"text {at}",
            errors=ErrorCounts(10, wrong, 50, wrong),
            words=[AlignedWord("text", "text"), *WRONG[:wrong]],
            similarities={"own encoder": like + 0.01 * at},
        )
        for at in range(TEXTS)
    ]


def evaluation(folder: Path, steps: Sequence[str] = tuple(STEPS)) -> Evaluation:
    """Checkpoints beside the base and the recordings."""
    trained = [System(name, folder, "named", int(name.split()[1])) for name in steps]
    found = {
        RECORDINGS: clips(folder, RECORDINGS, 1.0, 0, 0.8),
        **{name: clips(folder, name, STEPS[name], 1, 0.7) for name in steps},
        BASE: clips(folder, BASE, 1.1, 3, 0.5),
    }
    systems = [*trained, System(BASE, folder / "base", "cloned", is_base=True)]
    return Evaluation(systems, found, ["own encoder"], {"own encoder": 0.3}, ["A note."], {"model": "runs/me", "asr": None})
