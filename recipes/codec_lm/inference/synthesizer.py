"""Speech from an exported folder: model and codec are loaded once and speak many requests."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.audio_codecs.snac_codec import CODEC_FOLDER
from data_prep.audio_codecs.snac_streaming import StreamingSnacDecoder, decode_codes
from recipes.language.model_loading import load_for_generation
from recipes.speech.decoding.frame_loop import growing_chunk_sizes
from recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from recipes.speech.loaded_voice import LoadedVoice
from recipes.speech.sampling_settings import extend_sampling

from ..dataset_speakers import open_run_codec
from ..sampling import TokenSampling, make_sampler, resolve_settings
from .exported_metadata import ExportedSpeechTokens
from .token_decoding import SpeechTokenDecoder, SpeechTokenSession


@dataclass(frozen=True)
class SpokenCodes(SpeechResult):
    """Generated speech and its codes."""

    codes: np.ndarray
    """[T, codebooks] int64, in the codec's order."""


class TokenSynthesizer(LoadedVoice):
    """Owns a loaded model and its codec, on the GPU if there is one; `close` frees their memory. Not thread-safe.

    Implements `recipes.speech.interface.Voice`.
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

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> list[SpokenCodes]:
        """Speech for each request, in order, generated as one batch. With the same seed, a request gives the same codes alone or in a
        batch."""
        if not requests:
            return []
        session = self._start_session(requests, sampling)
        for _ in session.frames():
            pass
        session.check_well_formed()
        spoken = [(self._ids.arrange_codes(one.codes), one.ended) for one in session.results()]
        return [SpokenCodes(decode_codes(self._codec, codes).numpy(), self.rate, ended, codes.numpy()) for codes, ended in spoken]

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpokenCodes]:
        """Chunks [samples] float32 as they are generated; concatenated they are the wave of `speak`. The generator returns the result."""
        session, stream = self._start_session([request], sampling), StreamingSnacDecoder(self._codec)
        chunks: list[np.ndarray] = []
        for piece in session.chunks(growing_chunk_sizes()):
            chunks.append(stream.feed(self._ids.arrange_codes(piece[:, 0])).numpy())
            if len(chunks[-1]):
                yield chunks[-1]
        session.check_well_formed()
        (result,) = session.results()
        codes = self._ids.arrange_codes(result.codes)
        chunks.append(stream.feed(codes[:0], last=True).numpy())
        if len(chunks[-1]):
            yield chunks[-1]
        return SpokenCodes(np.concatenate(chunks), self.rate, result.ended, codes.numpy())

    def _start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> SpeechTokenSession:
        for request in requests:
            self.check(request)
        settings = extend_sampling(sampling, TokenSampling)
        return SpeechTokenSession(
            self._decoder,
            [self.exported.make_prompt(request) for request in requests],
            make_sampler(self.exported.family, self.exported.generation, settings),
            settings.constrained,
            [settings.seed] * len(requests),
            math.ceil(settings.max_seconds * self.frame_rate),
        )
