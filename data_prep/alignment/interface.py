"""Interface of forced aligners, and the score by which texts are accepted or rejected."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from overtone.data_prep.audio.waveform import Samples

UNALIGNED_SCORE = -10.0
"""Score of a text that no path can align: longer than its audio, or outside the beam of the search. Below all measured scores."""


class AlignedUnit(NamedTuple):
    """Word number `position` of the text, spoken from `start` to `stop` in seconds."""

    position: int
    start: float
    stop: float


class TextAlignment(BaseModel):
    """The alignment of a text with a clip."""

    model_config = ConfigDict(frozen=True)

    score: float | None
    """Mean log-probability per frame of the aligned path minus that of the best free path, minus the limit of the engine: negative if the
    text is not what was spoken. None: too little of the text can be checked."""
    words: tuple[AlignedUnit, ...] = ()
    unknown: int = 0
    """Words that the engine cannot check: digits, characters or words outside its vocabulary."""


class LoadedAligner(Protocol):
    """A loaded forced aligner."""

    def align(self, samples: Samples, words: Sequence[str]) -> TextAlignment:
        """Align all `words` with `samples` [n] at 16 kHz, which must contain nothing else."""
        ...

    def locate(self, samples: Samples, words: Sequence[str], starts: Sequence[int] = ()) -> tuple[AlignedUnit, ...]:
        """Find which run of neighbouring `words` is spoken in `samples` [n] at 16 kHz; empty if none fits.

        `starts`: words, ascending, at which passages of the text begin; inside the run, the speaker may have left out whole passages.
        """
        ...


class Aligner(Protocol):
    """A forced aligner, not yet loaded."""

    @property
    def digest(self) -> str:
        """Digest of everything that its results depend on besides audio and text."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Size of the files of its weights."""
        ...

    def load(self, device: str) -> LoadedAligner: ...


def find_starts(words: Sequence[int | None], starts: Sequence[int]) -> list[int]:
    """Return the token index at which each passage starts; passages without tokens are skipped. `words`: the word of each token (None: a
    separator); `starts`: the first word of each passage."""
    firsts: dict[int, int] = {}
    for at, word in enumerate(words):
        if word is not None:
            firsts.setdefault(bisect_right(starts, word), at)
    return sorted(firsts.values())
