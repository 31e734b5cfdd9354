"""Speech from an exported folder: model and codec are loaded once and speak many requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER
from overtone.data_prep.audio_codecs.snac_stream_decoder import StreamingSnacDecoder, decode_codes
from overtone.finetune.errors import UserError
from overtone.recipes.language.model_loading import load_for_generation
from overtone.recipes.speech.decoding.frame_loop import DecodedCodes
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.sampling_settings import extend_sampling

from ..model.dataset_speakers import open_run_codec
from ..model.sampling_settings import TokenSampling, make_sampler, resolve_settings
from .continuous_batching import SpeechTokenBatch
from .decoding import SpeechTokenDecoder, SpeechTokenSession
from .exported_folder import ExportedSpeechTokens


class TokenSynthesizer(FrameVoice):
    """Owns a loaded model and its codec, on the GPU if there is one; `close` frees their memory. Not thread-safe.

    Implements `overtone.recipes.speech.interface.Voice`.
    """

    can_clone = False
    languages: tuple[str, ...] = ()

    def __init__(self, exported: ExportedSpeechTokens) -> None:
        defaults = resolve_settings(exported.family, exported.generation, SpeechSampling())
        super().__init__(exported, exported.languages, defaults)
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

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raise `UserError` for a language other than that of the speaker's training data."""
        self.exported.check_language(language, speaker)

    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> SpeechTokenSession:
        """Implements `FrameVoice`."""
        settings = extend_sampling(sampling, TokenSampling)
        return SpeechTokenSession(
            self._decoder,
            [self.exported.make_prompt(request) for request in requests],
            make_sampler(self.exported.family, self.exported.generation, settings),
            settings.constrained,
            [settings.seed] * len(requests),
            math.ceil(settings.max_seconds * self.frame_rate),
        )

    def start_batch(self, slots: int) -> tuple[SpeechTokenBatch, Callable[[SpeechRequest, SpeechSampling], int]]:
        """Implements `FrameVoice`. A batch always has the constraint that only codes are chosen."""
        batch = SpeechTokenBatch(self._decoder, slots)

        def join(request: SpeechRequest, sampling: SpeechSampling) -> int:
            settings = extend_sampling(sampling, TokenSampling)
            if not settings.constrained:
                raise UserError("--unconstrained is not possible in a batch that requests join; remove the option")
            sampler = make_sampler(self.exported.family, self.exported.generation, settings)
            frames = math.ceil(settings.max_seconds * self.frame_rate)
            return batch.join(self.exported.make_prompt(request), sampler, settings.seed, frames)

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
