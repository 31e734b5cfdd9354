"""The interface of speech models for evaluation and serving: requests in, waveforms out.

A speech recipe implements two small classes, `VoiceFolder` (an exported folder, before its weights are read) and `Voice` (the loaded
model), and passes them on in a `SpeechRecipe`. This module, the evaluation and the server do not depend on a model, a codec or a tokenizer.
A request names a speaker or gives a reference clip; if the model has only one speaker, it needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from overtone.recipes.serving.running_batch_interface import RunningBatch


@dataclass(frozen=True)
class SpeechRequest:
    """One text in one voice."""

    text: str
    speaker: str | None
    """A speaker of the model; None: its only speaker, or the one in `reference`."""
    language: str | None = None
    """Name, ISO code or `auto`; None: the language of the speaker's training data."""
    reference: Path | None = None
    """Clip of a voice to clone, for models that support it (`Voice.can_clone`)."""
    reference_text: str | None = None
    """Transcript of the clip. If it is given, the model also continues the clip's style; otherwise, only the voice is used."""


@dataclass(frozen=True)
class SpeechSampling:
    """Settings that every speech model has. A recipe may subclass it to offer more in its own verbs."""

    greedy: bool = False
    """Always take the most likely token, whatever the other settings say."""
    temperature: float | None = None
    """None: the model's own."""
    seed: int = 0
    max_seconds: float = 60.0
    """Time limit: longer speech is cut off."""


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
    """A loaded speech model. Only one thread at a time may use it."""

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names in lower case; empty if the model only clones reference clips."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that `SpeechRequest.language` may name; empty if the model takes no language."""

    @property
    def can_clone(self) -> bool:
        """True if `SpeechRequest.reference` is supported."""

    @property
    def rate(self) -> int:
        """Sample rate of every wave, in Hz. Evaluation resamples; spectrograms expect 24 kHz."""

    @property
    def frame_rate(self) -> float:
        """Frames of audio tokens per second; the length of speech is a multiple of one frame."""

    @property
    def default_temperature(self) -> float:
        """Temperature of requests that set none."""

    @property
    def samples_by_default(self) -> bool:
        """False: the model decodes greedily unless a request sets a temperature."""

    @property
    def created(self) -> int:
        """When the model was exported, in seconds since the epoch."""

    def check(self, request: SpeechRequest) -> None:
        """Raises `UserError`, which lists the alternatives, for a request that this model cannot speak. Called from any thread."""

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raises `UserError` if the model cannot speak that language (None: the speaker's own). Called from any thread."""

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> Sequence[SpeechResult]:
        """Speech for each request, in their order. The same seed gives the same speech, whatever else is in the batch. A request alone may
        have other kernels than two or more, and so scores that differ in their last bits."""

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechResult]:
        """Chunks [samples] float32 while they are generated; together they equal the wave of `speak`. A caller may stop at any chunk. The
        generator returns the result."""

    def close(self) -> None:
        """Free the model's memory. It must not be used afterwards."""


@dataclass(frozen=True)
class SpokenRequest:
    """A request with its settings, as it joins a batch."""

    request: SpeechRequest
    sampling: SpeechSampling


@runtime_checkable
class BatchingVoice(Protocol):
    """A `Voice` that also speaks requests which join and leave a running batch. A server speaks one request at a time with other voices."""

    def open_batch(self, slots: int, longest_seconds: float) -> RunningBatch[SpokenRequest, np.ndarray]:
        """A batch of at most `slots` requests at once, prepared for speech of at most `longest_seconds`; longer speech makes the others
        wait for that preparation. The pieces are chunks [samples] float32; a request has the same codes whatever else
        is in the batch, and those of `Voice.stream` but for the kernels of a request alone (see `Voice.speak`)."""


class VoiceFolder(Protocol):
    """An exported folder, checked without reading its weights."""

    @property
    def folder(self) -> Path: ...

    @property
    def speakers(self) -> Collection[str]:
        """Names in lower case; empty if the model only clones reference clips."""

    @property
    def can_clone(self) -> bool:
        """True if `SpeechRequest.reference` is supported."""

    @property
    def first_speaker(self) -> str | None:
        """The first speaker that was trained; None if the folder names none."""

    def check(self, request: SpeechRequest) -> None:
        """Raises `UserError` for a request that the model cannot speak, as `Voice.check` does."""

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        """A request that passed `check`, with the speaker (None: cloned) and language (None: it has none) in which it is spoken."""

    def open(self) -> Voice:
        """Load the weights."""


def list_speaker_names(state: dict[str, Any]) -> list[str]:
    """The names in a recipe state whose `speakers` are objects with a `name`, as `voices_json_content` makes it."""
    return [speaker["name"] for speaker in state["speakers"]]


@dataclass(frozen=True)
class SpeechRecipe:
    """Functions that a speech recipe passes to evaluation and serving."""

    name: str
    """Name of the recipe, or path of its folder; used to export its checkpoints."""
    inspect: Callable[[Path], VoiceFolder]
    """Read the metadata of an exported folder or a base. Raises `UserError` if the recipe cannot speak with it."""
    trained_speakers: Callable[[dict[str, Any]], Sequence[str]] = list_speaker_names
    """Speakers in lower case, from the `recipe_state` of a checkpoint's `state.json`."""
    base_folders: tuple[str, ...] = ()
    """Folders inside a base, as in `Recipe.base_folders`."""
