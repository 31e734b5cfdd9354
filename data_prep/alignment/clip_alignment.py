"""Alignment of the clips of a recording with their texts: the score that shows whether a text is what was spoken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from overtone.data_prep.alignment.ctc_aligner import open_ctc_aligner
from overtone.data_prep.alignment.interface import Aligner, LoadedAligner, TextAlignment
from overtone.data_prep.alignment.pocketsphinx_aligner import NAME as POCKETSPHINX
from overtone.data_prep.alignment.pocketsphinx_aligner import open_pocketsphinx_aligner
from overtone.data_prep.audio.waveform import SPEECH_RATE, read_audio

LONGEST_SECONDS = 60
"""Longer clips are not aligned: they are rejected for their length, and would take memory without bound."""


def open_aligner(option: str, name: str) -> Aligner:
    """Open `pocketsphinx`, or a Wav2Vec2 model with a CTC head by folder or hub name. Raises `UserError` in the name of `option`."""
    return open_pocketsphinx_aligner(option) if name == POCKETSPHINX else open_ctc_aligner(option, name)


def split_words(text: str) -> list[str]:
    """Return the words of a text between spaces. A text in a script without spaces is one word: it is scored as a whole, and its parts get
    no times."""
    return text.split()


def align_clips(aligner: LoadedAligner, clips: Mapping[str, tuple[Path, str]]) -> dict[str, TextAlignment]:
    """Return clip id → alignment, for clips given as (file, text); omits clips of more than `LONGEST_SECONDS`."""
    sounds = ((identity, read_audio(path, SPEECH_RATE), text) for identity, (path, text) in clips.items())
    return {
        identity: aligner.align(sound.samples, split_words(text)) for identity, sound, text in sounds if sound.seconds <= LONGEST_SECONDS
    }
