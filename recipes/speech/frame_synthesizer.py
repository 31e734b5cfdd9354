"""Synthesis with any model that generates frames of codes: one text or several at once, whole or as a stream.

Must not import torch: `overtone generate --help` imports modules that import this one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from overtone.recipes.serving.running_batch_interface import STOP

from .interface import SpeechRequest, SpeechResult, SpeechSampling, SpokenRequest
from .voice_base_class import LoadedVoice

if TYPE_CHECKING:
    from torch import Tensor

    from .continuous_speech_batch import NewFrames, SpeechBatch
    from .decoding.continuous_batching import FrameBatch
    from .exported_speech_folder import SpeechFolder
    from .sampling_settings import SamplingScheme

PromptT = TypeVar("PromptT", bound=Sized)
SamplerT = TypeVar("SamplerT")
StreamT = TypeVar("StreamT")


@dataclass(frozen=True)
class SpeechWithCodes(SpeechResult):
    """Generated speech and its codes."""

    codes: np.ndarray
    """[T, codebooks] int64, in the codec's order."""


class FrameVoice(LoadedVoice, ABC, Generic[PromptT, SamplerT, StreamT]):
    """Base of the classes that implement `Voice`, `BatchingVoice` and `SoundDecoder` with a `FrameBatch` and a codec, whose state of a
    stream is a `StreamT`."""

    joins_streams = False
    """Implements `SoundDecoder`."""

    def __init__(self, folder: SpeechFolder, scheme: SamplingScheme) -> None:
        """`scheme`: the settings of its `generation`."""
        super().__init__(folder, folder.speakers, scheme.resolve(folder.generation, SpeechSampling()))
        self._requests = folder

    @property
    @abstractmethod
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""

    @property
    @abstractmethod
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""

    @abstractmethod
    def make_prompt(self, request: SpeechRequest) -> PromptT:
        """The model's input up to the first frame, of a request that has passed `check`. Raises `UserError` if it fills the model."""

    @abstractmethod
    def make_sampler(self, sampling: SpeechSampling) -> SamplerT:
        """The settings of a request, with those of the model for all that it does not set."""

    @abstractmethod
    def open_frames(self, requests: int) -> FrameBatch[Any, PromptT, SamplerT]:
        """A batch of at most so many requests at once."""

    @abstractmethod
    def decode_waves(self, requests: Sequence[SpeechRequest], codes: Sequence[Tensor]) -> list[np.ndarray]:
        """Wave [samples] float32 of each request's codes [T, codebooks]."""

    @abstractmethod
    def open_stream(self, request: SpeechRequest) -> StreamT:
        """Implements `SoundDecoder`."""

    @abstractmethod
    def decode_frames(self, new: Sequence[NewFrames[StreamT]]) -> list[Tensor]:
        """Implements `SoundDecoder`."""

    @property
    def can_clone(self) -> bool:
        """True if it clones from a reference clip."""
        return self._requests.can_clone

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raises `UserError` if the model cannot speak that language; None is the speaker's own."""
        self._requests.choose_language(language, speaker)

    def join(self, batch: FrameBatch[Any, PromptT, SamplerT], request: SpeechRequest, sampling: SpeechSampling) -> int:
        """Start a request in a batch of `open_frames`, and return its row. Raises `UserError` for a request that fails `check`."""
        self.check(request)
        limit = math.ceil(sampling.max_seconds * self.frame_rate)
        return batch.join(self.make_prompt(request), self.make_sampler(sampling), sampling.seed, limit)

    def open_batch(self, slots: int, longest_seconds: float) -> SpeechBatch:
        """Implements `BatchingVoice`. On a GPU, the frames of speech of that length with the model's own sampling are captured now."""
        from .continuous_speech_batch import SpeechBatch

        batch = self.open_frames(slots)
        batch.capture_frames(math.ceil(longest_seconds * self.frame_rate), self.make_sampler(SpeechSampling()))
        return SpeechBatch(batch, partial(self.join, batch), self)

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> list[SpeechWithCodes]:
        """Speech for each request, in order, generated as one batch. With the same seed, a request gives the same codes in any batch of two
        or more. Alone, it has other kernels, whose scores may differ in their last bits; in the tests, in fp32, its codes are the same."""
        return self.speak_each([SpokenRequest(request, sampling) for request in requests])

    def speak_each(self, spoken: Sequence[SpokenRequest]) -> list[SpeechWithCodes]:
        """Like `speak`, for requests with settings of their own."""
        if not spoken:
            return []
        requests = [one.request for one in spoken]
        for request in requests:
            self.check(request)
        batch, prompts = self.open_frames(len(requests)), [self.make_prompt(request) for request in requests]
        limits = [math.ceil(one.sampling.max_seconds * self.frame_rate) for one in spoken]
        batch.reserve(prompts, max(limits))
        joined = zip(spoken, prompts, limits, strict=True)
        results = batch.finish(
            [batch.join(prompt, self.make_sampler(one.sampling), one.sampling.seed, limit) for one, prompt, limit in joined]
        )
        waves = self.decode_waves(requests, [one.codes for one in results])
        return [SpeechWithCodes(wave, self.rate, one.ended, one.codes.numpy()) for wave, one in zip(waves, results, strict=True)]

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechResult]:
        """Chunks [samples] float32 as they are generated; concatenated they are the wave of `speak`. The generator returns the result."""
        from .continuous_speech_batch import SpeechBatch

        frames = self.open_frames(1)
        batch, chunks, over = SpeechBatch(frames, partial(self.join, frames), self), [np.zeros(0, np.float32)], None
        slot = batch.join(SpokenRequest(request, sampling))
        while over is None:
            progress = batch.step()[slot]
            over = progress.over
            if progress.piece is not None:
                chunks.append(progress.piece)
                yield progress.piece
        return SpeechResult(np.concatenate(chunks), self.rate, over == STOP)
