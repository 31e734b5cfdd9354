"""What evaluation and serving need of a speech model: requests in, waveforms out.

A speech recipe implements two small classes, `VoiceFolder` (what an exported folder says before its weights are read) and `Voice` (the
loaded model), and passes them on in a `SpeechRecipe`. Nothing here, in the evaluation or in the server knows a particular model, a codec or
a tokenizer. A request says who speaks by a speaker's name, by a reference clip, or by neither if the model has one speaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class SpeechRequest:
    """One text in one voice."""

    text: str
    speaker: str | None
    """A speaker of the model; None is its only one, or the one of `reference`."""
    language: str | None = None
    """Name, ISO code or `auto`; None is the language that the speaker was trained with."""
    reference: Path | None = None
    """Clip of a voice to clone instead, for models that can (`Voice.can_clone`)."""
    reference_text: str | None = None
    """Transcript of the clip: with it the model continues the clip's manner, without it only its voice is used."""


@dataclass(frozen=True)
class SpeechSampling:
    """Settings that every speech model has. A recipe may subclass it and offer more in its own verbs."""

    greedy: bool = False
    """Always take the most likely token, whatever the other settings say."""
    temperature: float | None = None
    """None: the model's own."""
    seed: int = 0
    max_seconds: float = 60.0
    """Speech is cut off there if the model does not end by itself."""


@dataclass(frozen=True)
class SpeechResult:
    """Generated speech."""

    wave: np.ndarray
    """[samples] float32, mono."""
    rate: int
    """Hz."""
    ended: bool
    """False: cut off at `max_seconds`."""


class Voice(Protocol):
    """A loaded speech model. For one thread at a time."""

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names in lower case; empty if the model only clones reference clips."""

    @property
    def languages(self) -> tuple[str, ...]:
        """What `SpeechRequest.language` may name; empty if the model takes no language."""

    @property
    def can_clone(self) -> bool:
        """Whether `SpeechRequest.reference` is supported."""

    @property
    def rate(self) -> int:
        """Sample rate of every wave, in Hz. Evaluation resamples; spectrograms expect 24 kHz."""

    @property
    def frame_rate(self) -> float:
        """Frames of audio tokens per second: the steps in which the length of speech grows."""

    @property
    def default_temperature(self) -> float:
        """Used where a request sets none."""

    @property
    def samples_by_default(self) -> bool:
        """False: the model decodes greedily unless a request sets a temperature."""

    @property
    def created(self) -> int:
        """When the model was exported, in seconds since the epoch."""

    def check(self, request: SpeechRequest) -> None:
        """Raise `UserError`, which lists what exists, for a request that this model cannot speak. Called from any thread."""

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raise `UserError` if the model cannot speak that language (None: the speaker's own). Called from any thread."""

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> Sequence[SpeechResult]:
        """Speech for each request, in their order. The same seed gives the same speech, whatever else is in the batch."""

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Iterator[np.ndarray]:
        """Chunks [samples] float32 as they are generated; together they are the wave of `speak`. A caller may stop at any chunk."""

    def close(self) -> None:
        """Free the model's memory. Nothing is called after it."""


class VoiceFolder(Protocol):
    """An exported folder, checked without reading its weights."""

    @property
    def folder(self) -> Path: ...

    @property
    def can_clone(self) -> bool:
        """Whether `SpeechRequest.reference` is supported."""

    @property
    def first_speaker(self) -> str | None:
        """The first speaker that was trained; None if the folder names none."""

    def check(self, request: SpeechRequest) -> None:
        """As `Voice.check`."""

    def open(self) -> Voice:
        """Load the weights."""


@dataclass(frozen=True)
class SpeechRecipe:
    """What a speech recipe passes to evaluation and serving."""

    name: str
    """Of the recipe, or the path of its folder: its checkpoints are exported with it."""
    inspect: Callable[[Path], VoiceFolder]
    """Read what an exported folder, or a base, says of itself. Raises `UserError` if the recipe cannot speak with it."""
    trained_speakers: Callable[[dict[str, Any]], Sequence[str]]
    """Speakers in lower case, from the `recipe_state` of a checkpoint's `state.json`."""
    base_folders: tuple[str, ...] = ()
    """As `Recipe.base_folders`: folders that a base holds besides its files."""
