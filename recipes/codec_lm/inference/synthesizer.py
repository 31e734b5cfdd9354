"""Speech from an exported folder: model and codec are loaded once and speak many requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER
from overtone.data_prep.audio_codecs.snac_stream_decoder import StreamingSnacDecoder, decode_codes
from overtone.finetune.errors import UserError
from overtone.recipes.language.model_loading import load_for_generation
from overtone.recipes.speech.decoding.frame_loop import DecodedCodes
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from overtone.recipes.speech.frame_synthesizer import PromptedVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.sampling_settings import extend_sampling

from ..model.dataset_speakers import open_run_codec
from ..model.sampling_settings import TokenSampling, make_sampler, resolve_settings
from .continuous_batching import SpeechTokenBatch
from .decoding import SpeechTokenDecoder, SpeechTokenSession
from .exported_folder import ExportedSpeechTokens


class TokenSampler(NamedTuple):
    """The sampler of a request, and whether it chooses among the codes of the next slot alone."""

    codes: CodeSampler
    constrained: bool


class TokenSynthesizer(PromptedVoice[list[int], TokenSampler]):
    """Owns a loaded model and its codec, on the GPU if there is one; `close` frees their memory. Not thread-safe.

    Implements `overtone.recipes.speech.interface.Voice`.
    """

    languages: tuple[str, ...] = ()

    def __init__(self, exported: ExportedSpeechTokens) -> None:
        super().__init__(exported, resolve_settings(exported.family, exported.generation, SpeechSampling()))
        self.exported, self._ids = exported, exported.processor.ids
        # A released model has no codec of its own; exports have one in this folder.
        place = f"--model {exported.folder} (its codec belongs in {CODEC_FOLDER}/):"
        codec = open_run_codec(None, exported.folder, exported.family, place)
        self._model: Any = load_for_generation(exported.folder)[0]
        self._decoder = SpeechTokenDecoder(self._model, self._ids)
        self._codec: Any = codec.load(str(self._model.device))

    def close(self) -> None:
        """Free the memory. The synthesizer cannot be used afterwards."""
        self._model = self._decoder = self._codec = None  # type: ignore[assignment]

    @property
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""
        return self.exported.family.sample_rate

    @property
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""
        return self.exported.family.frame_rate

    def make_prompt(self, request: SpeechRequest) -> list[int]:
        """Implements `PromptedVoice`."""
        return self.exported.make_prompt(request.text, request.speaker)

    def make_sampler(self, sampling: SpeechSampling) -> TokenSampler:
        """Implements `PromptedVoice`."""
        settings = extend_sampling(sampling, TokenSampling)
        return TokenSampler(make_sampler(self.exported.family, self.exported.generation, settings), settings.constrained)

    def open_session(self, prompts: list[list[int]], sampler: TokenSampler, seeds: list[int], max_frames: int) -> SpeechTokenSession:
        """Implements `PromptedVoice`."""
        return SpeechTokenSession(self._decoder, prompts, sampler.codes, sampler.constrained, seeds, max_frames)

    def open_rows(self, slots: int) -> tuple[SpeechTokenBatch, Callable[[list[int], TokenSampler, int, int], int]]:
        """Implements `PromptedVoice`. A batch always has the constraint that only codes are chosen."""
        batch = SpeechTokenBatch(self._decoder, slots)
        batch.sampling.set_row(0, make_sampler(self.exported.family, self.exported.generation, TokenSampling()))

        def join(prompt: list[int], sampler: TokenSampler, seed: int, max_frames: int) -> int:
            if not sampler.constrained:
                raise UserError("--unconstrained is not possible in a batch that requests join; remove the option")
            return batch.join(prompt, sampler.codes, seed, max_frames)

        return batch, join

    def decode_waves(self, requests: Sequence[SpeechRequest], results: Sequence[DecodedCodes]) -> list[np.ndarray]:  # noqa: ARG002
        """Implements `FrameVoice`."""
        return [decode_codes(self._codec, one.codes).numpy() for one in results]

    def decode_stream(self, request: SpeechRequest, pieces: Iterator[Tensor]) -> Iterator[Tensor]:  # noqa: ARG002
        """Implements `FrameVoice`."""
        stream = StreamingSnacDecoder(self._codec)
        for piece in pieces:
            yield stream.feed(piece)
        yield stream.feed(torch.zeros((0, len(self._ids.slots)), dtype=torch.int64), last=True)
