"""Speech from an exported folder: model and codec are loaded once and speak many requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER
from overtone.data_prep.audio_codecs.snac_stream_decoder import StreamingSnacDecoder, decode_codes
from overtone.recipes.language.model_loading import load_for_generation
from overtone.recipes.speech.continuous_speech_batch import NewFrames
from overtone.recipes.speech.decoding.token_sampling import make_samplers
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.run_codec import open_run_codec
from overtone.recipes.speech.sampling_settings import extend_sampling

from ..model.dataset_speakers import expect_codec
from ..model.sampling_settings import SCHEME, TokenSampling
from .decoding import SpeechTokenBatch, SpeechTokenDecoder, TokenSampler
from .exported_folder import ExportedSpeechTokens


class TokenSynthesizer(FrameVoice[Sequence[int], TokenSampler, StreamingSnacDecoder]):
    """Owns a loaded model and its codec, on the GPU if there is one; `close` frees their memory. Not thread-safe.

    Implements `overtone.recipes.speech.interface.Voice`.
    """

    languages: tuple[str, ...] = ()

    def __init__(self, exported: ExportedSpeechTokens) -> None:
        super().__init__(exported, SCHEME)
        self.exported, self._ids = exported, exported.processor.ids
        # A released model has no codec of its own; exports have one in this folder.
        place = f"--model {exported.folder} (its codec belongs in {CODEC_FOLDER}/):"
        codec = open_run_codec(None, exported.folder, expect_codec(exported.family), place)
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
        """Implements `FrameVoice`."""
        return self.exported.make_prompt(request.text, request.speaker)

    def make_sampler(self, sampling: SpeechSampling) -> TokenSampler:
        """Implements `FrameVoice`."""
        (codes,) = make_samplers(SCHEME, self.exported.generation, sampling)
        return TokenSampler(**vars(codes), constrained=extend_sampling(sampling, TokenSampling).constrained)

    def open_frames(self, requests: int) -> SpeechTokenBatch:
        """Implements `FrameVoice`."""
        return SpeechTokenBatch(self._decoder, requests)

    def decode_waves(self, requests: Sequence[SpeechRequest], codes: Sequence[Tensor]) -> list[np.ndarray]:  # noqa: ARG002
        """Implements `FrameVoice`."""
        return [decode_codes(self._codec, one).numpy() for one in codes]

    def open_stream(self, request: SpeechRequest) -> StreamingSnacDecoder:  # noqa: ARG002
        """Implements `FrameVoice`."""
        return StreamingSnacDecoder(self._codec)

    def decode_frames(self, new: Sequence[NewFrames[StreamingSnacDecoder]]) -> list[Tensor]:
        """Implements `FrameVoice`."""
        return [one.stream.feed(one.codes, one.last) for one in new]
