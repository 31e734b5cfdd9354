"""Synthesis with any model that generates frames of codes: one text or several at once, whole or as a stream.

Must not import torch: `overtone generate --help` imports modules that import this one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from .interface import SpeechRequest, SpeechResult, SpeechSampling
from .voice_base_class import LoadedVoice

if TYPE_CHECKING:
    from torch import Tensor

    from .continuous_speech_batch import SpeechBatch
    from .decoding.continuous_batching import FrameBatch
    from .decoding.frame_loop import DecodedCodes, FrameLoop
    from .exported_speech_folder import SpeechFolder

PromptT = TypeVar("PromptT")
SamplerT = TypeVar("SamplerT")


@dataclass(frozen=True)
class SpeechWithCodes(SpeechResult):
    """Generated speech and its codes."""

    codes: np.ndarray
    """[T, codebooks] int64, in the codec's order."""


class FrameVoice(LoadedVoice, ABC):
    """Base of the classes that implement `Voice` with a session (`FrameLoop`) and a codec."""

    @property
    @abstractmethod
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""

    @property
    @abstractmethod
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""

    @abstractmethod
    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> FrameLoop:
        """The session that generates the codes of requests, which have passed `check`."""

    @abstractmethod
    def decode_waves(self, requests: Sequence[SpeechRequest], results: Sequence[DecodedCodes]) -> list[np.ndarray]:
        """Wave [samples] float32 of each request's codes."""

    @abstractmethod
    def decode_stream(self, request: SpeechRequest, pieces: Iterator[Tensor]) -> Iterator[Tensor]:
        """Samples [n] float32, as soon as they are final, of pieces [frames, codebooks] of codes; concatenated they are the wave."""

    @abstractmethod
    def start_batch(self, slots: int) -> tuple[FrameBatch[Any], Callable[[SpeechRequest, SpeechSampling], int]]:
        """A batch of at most `slots` requests at once, whose plan is that of requests without settings, and the function that starts a
        request, which has passed `check`, in one of its rows and returns the row."""

    def open_batch(self, slots: int, longest_seconds: float) -> SpeechBatch:
        """Implements `BatchingVoice`. On a GPU, the frames of speech of that length with the model's own sampling are captured now."""
        from .continuous_speech_batch import SpeechBatch

        batch, join = self.start_batch(slots)
        batch.capture_frames(math.ceil(longest_seconds * self.frame_rate))

        def check_and_join(request: SpeechRequest, sampling: SpeechSampling) -> int:
            self.check(request)
            return join(request, sampling)

        return SpeechBatch(batch, check_and_join, self.decode_stream)

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> list[SpeechWithCodes]:
        """Speech for each request, in order, generated as one batch. With the same seed, a request gives the same codes alone or in a
        batch."""
        if not requests:
            return []
        session = self._check_and_start(requests, sampling)
        for _ in session.frames():
            pass
        session.check_well_formed()
        results = session.results()
        waves = self.decode_waves(requests, results)
        return [SpeechWithCodes(wave, self.rate, one.ended, one.codes.numpy()) for wave, one in zip(waves, results, strict=True)]

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechWithCodes]:
        """Chunks [samples] float32 as they are generated; concatenated they are the wave of `speak`. The generator returns the result."""
        from .decoding.frame_loop import growing_chunk_sizes

        session = self._check_and_start([request], sampling)
        chunks = [np.zeros(0, np.float32)]
        for samples in self.decode_stream(request, (piece[:, 0] for piece in session.chunks(growing_chunk_sizes()))):
            if len(samples):
                chunks.append(samples.cpu().numpy())
                yield chunks[-1]
        session.check_well_formed()
        (result,) = session.results()
        return SpeechWithCodes(np.concatenate(chunks), self.rate, result.ended, result.codes.numpy())

    def _check_and_start(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> FrameLoop:
        for request in requests:
            self.check(request)
        return self.start_session(requests, sampling)


class PromptedVoice(FrameVoice, Generic[PromptT, SamplerT]):
    """Base of the voices that make one prompt from each request, and one sampler from its settings: a session and a running batch take the
    same."""

    def __init__(self, folder: SpeechFolder, defaults: Mapping[str, Any]) -> None:
        """`defaults`: as of `LoadedVoice`."""
        super().__init__(folder, folder.speakers, defaults)
        self._requests = folder

    @abstractmethod
    def make_prompt(self, request: SpeechRequest) -> PromptT:
        """The model's input up to the first frame, of a request that has passed `check`. Raises `UserError` if it fills the model."""

    @abstractmethod
    def make_sampler(self, sampling: SpeechSampling) -> SamplerT:
        """The settings of a request, with those of the model for all that it does not set."""

    @abstractmethod
    def open_session(self, prompts: list[PromptT], sampler: SamplerT, seeds: list[int], max_frames: int) -> FrameLoop:
        """The session that generates the codes of these prompts."""

    @abstractmethod
    def open_rows(self, slots: int) -> tuple[FrameBatch[Any], Callable[[PromptT, SamplerT, int, int], int]]:
        """A batch of at most `slots` requests at once, and its function that starts (prompt, sampler, seed, maximum number of frames) in
        one of its rows and returns the row."""

    @property
    def can_clone(self) -> bool:
        """True if it clones from a reference clip."""
        return self._requests.can_clone

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raise `UserError` if the model cannot speak that language; None is the speaker's own."""
        self._requests.choose_language(language, speaker)

    def count_frames(self, sampling: SpeechSampling) -> int:
        """Return the maximum number of frames: `max_seconds`, rounded up."""
        return math.ceil(sampling.max_seconds * self.frame_rate)

    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> FrameLoop:
        """Implements `FrameVoice`."""
        prompts = [self.make_prompt(request) for request in requests]
        return self.open_session(prompts, self.make_sampler(sampling), [sampling.seed] * len(prompts), self.count_frames(sampling))

    def start_batch(self, slots: int) -> tuple[FrameBatch[Any], Callable[[SpeechRequest, SpeechSampling], int]]:
        """Implements `FrameVoice`."""
        batch, join = self.open_rows(slots)
        return batch, lambda request, sampling: join(
            self.make_prompt(request), self.make_sampler(sampling), sampling.seed, self.count_frames(sampling)
        )
