"""Who counts the wrong words of what a demo model says: Whispers by name, and pocketsphinx.

whisper-demo-en has heard codec-demo in its training, as a real Whisper has heard compressed speech; pocketsphinx never has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence

from data_prep.audio.waveform import Samples
from recipes.speech.evaluation import intelligibility
from recipes.voice_clone.studio import pocketsphinx_judge

Said = Sequence[tuple[str, Samples]]
"""(text, samples [n] at 24 kHz)."""
Judge = Callable[[Said], float]
"""The share of wrong words."""


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--asr",
        action="append",
        default=[],
        metavar="JUDGE",
        help=f"who counts words: a Whisper, by name or .pt file, or {pocketsphinx_judge.NAME}",
    )


def called(names: Iterable[str]) -> dict[str, Judge]:
    """Each with its model in memory. Raises `UserError` for one that cannot be had, before anybody has listened."""
    return {name: pocketsphinx_judge.judge() if name == pocketsphinx_judge.NAME else _whisper(name) for name in names}


def _whisper(name: str) -> Judge:
    intelligibility.check_whisper(name)
    model = intelligibility.load_whisper(name)
    return lambda said: intelligibility.clips_wer(model, said, "english")
