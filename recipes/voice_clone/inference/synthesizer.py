"""Speech from an exported Qwen3-TTS folder: the model is loaded once and speaks many requests.

    with open_synthesizer(Path("exports/me")) as voice:
        (spoken,) = voice.speak([Request("Hello.", speaker="me")], SamplingSettings(seed=1))

torch and the modules that import it are imported inside the functions: `overtone generate --help` and the checks of a request load no
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from overtone.data_prep import manifest
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.finetune.errors import UserError
from overtone.finetune.hardware import cudnn_sdpa
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechSampling
from overtone.recipes.speech.reference_cache import ReferenceClips
from overtone.recipes.speech.sampling_settings import extend_sampling

from ..model.config_factory import FRAME_RATE
from ..model.sampling_settings import SCHEME, SamplingSettings
from .exported_folder import ExportedModel

if TYPE_CHECKING:
    from torch import Tensor

    from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
    from overtone.recipes.speech.decoding.frame_loop import DecodedCodes

    from .decoding import DecodingSession
    from .prompt_embeddings import PromptEmbeddings, VoiceConditioning


@dataclass(frozen=True)
class Request(SpeechRequest):
    """A speech request with the options that only Qwen3-TTS has."""

    streamed_text: bool = False
    """Feed the text token by token with the frames, instead of whole before them. The recipe trains with whole text."""


def check_request(exported: ExportedModel, request: SpeechRequest) -> None:
    """Raise `UserError`, which lists the valid values, for a request that the folder cannot speak. Reads no weights."""
    request_checks.check_text(request)
    if request.reference is None:
        exported.language(request.language, exported.speaker(request.speaker))
    else:
        check_reference(exported, request)
        exported.language(request.language, None)
    check_length(exported, request.text)
    if request.reference_text is not None:
        check_length(exported, request.reference_text)


def check_reference(exported: ExportedModel, request: SpeechRequest) -> None:
    """Raise `UserError` unless the folder is a base export, the clip exists, and the request names no speaker."""
    if not exported.is_base:
        raise UserError(f"--reference: {exported.folder} is a custom_voice export and has no speaker encoder; export with --format base")
    request_checks.check_clip(request)


def check_length(exported: ExportedModel, text: str) -> None:
    """Raise `UserError` for a text that takes more than half of the positions: a spoken token rarely takes less than one frame."""
    from ..model.sequence_layout import tokenize_text

    request_checks.check_length(text, len(tokenize_text(text, exported.processor)), exported.ids.positions // 2)


class Synthesizer(FrameVoice):
    """Owns a loaded model, on the GPU in bf16 if there is one; `close` frees its memory. Not thread-safe.

    Implements `overtone.recipes.speech.interface.Voice`.
    """

    def __init__(self, exported: ExportedModel) -> None:
        from overtone.data_prep.audio_codecs.qwen3_tts_stream_decoder import Qwen3TTSStreamDecoder

        from . import stock_qwen_tts
        from .decoding import TalkerDecoder
        from .prompt_embeddings import PromptEmbedder

        super().__init__(ExportedVoice(exported), exported.speakers, SCHEME.resolve(exported.generation, SpeechSampling()))
        cudnn_sdpa.disable_cudnn()
        self.exported = exported
        self._model: Any = stock_qwen_tts.load(exported.folder).model
        self._decoder = TalkerDecoder(self._model.talker, exported.ids)
        self._embedder = PromptEmbedder(self._model.talker, exported.ids)
        self._codec_decoder = Qwen3TTSStreamDecoder(self._model.speech_tokenizer.model.decoder)
        self._reference_clips = ReferenceClips(self._encode_reference)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory. The synthesizer cannot be used afterwards."""
        self._model = self._decoder = self._embedder = self._codec_decoder = self._reference_clips = None  # type: ignore[assignment]

    @property
    def languages(self) -> tuple[str, ...]:
        """`auto` first, then the names."""
        return (manifest.AUTO, *sorted(self.exported.ids.languages))

    @property
    def can_clone(self) -> bool:
        """True if it clones from a reference clip."""
        return self.exported.is_base

    @property
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""
        return int(self._model.speech_tokenizer.get_output_sample_rate())

    @property
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""
        return FRAME_RATE

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raise `UserError` for a language that this model does not know; None is the language that the speaker was trained in."""
        self.exported.language(language, speaker)

    def start_session(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> DecodingSession:
        """Implements `FrameVoice`."""
        from .decoding import DecodingSession

        prompts = [self._embed_prompt(request, self._load_voice(request)) for request in requests]
        settings = extend_sampling(sampling, SamplingSettings)
        return DecodingSession(
            self._decoder, prompts, settings.make_sampler(self.exported.generation), [settings.seed] * len(prompts), settings.max_frames
        )

    def start_batch(self, slots: int) -> tuple[FrameBatch[Any], Callable[[SpeechRequest, SpeechSampling], int]]:
        """Implements `FrameVoice`."""
        from .continuous_batching import TalkerBatch

        batch = TalkerBatch(self._decoder, slots)

        def join(request: SpeechRequest, sampling: SpeechSampling) -> int:
            settings = extend_sampling(sampling, SamplingSettings)
            prompt = self._embed_prompt(request, self._load_voice(request))
            return batch.join(prompt, settings.make_sampler(self.exported.generation), settings.seed, settings.max_frames)

        return batch, join

    def _embed_prompt(self, request: SpeechRequest, voice: VoiceConditioning) -> PromptEmbeddings:
        import torch

        from ..model.sequence_layout import tokenize_text

        with torch.inference_mode():
            text = tokenize_text(request.text, self.exported.processor)
            prompt = self._embedder.embed(
                text, self._find_language_id(request), voice, isinstance(request, Request) and request.streamed_text
            )
        if len(prompt.before) >= self.exported.ids.positions:
            raise UserError(
                f"--reference {request.reference} and the text fill the model's {self.exported.ids.positions} positions; shorten the clip"
            )
        return prompt

    def _find_language_id(self, request: SpeechRequest) -> int | None:
        """Language id of the codec prefix, or None for auto. A preset that speaks a dialect uses it for Chinese and for auto."""
        speaker = self.exported.speaker(request.speaker) if request.reference is None else None
        name = self.exported.language(request.language, speaker)
        dialect = self.exported.dialect(speaker)
        if dialect is not None and name in (manifest.AUTO, "chinese"):
            return dialect
        return None if name == manifest.AUTO else self.exported.ids.languages[name]

    def _load_voice(self, request: SpeechRequest) -> VoiceConditioning:
        from ..model.sequence_layout import tokenize_text
        from .prompt_embeddings import VoiceConditioning

        if request.reference is None:
            return VoiceConditioning(self._decoder.first_table[self.exported.speakers[self.exported.speaker(request.speaker)]])
        vector, codes = self._reference_clips.get(request.reference)
        if request.reference_text is None:
            return VoiceConditioning(vector)
        return VoiceConditioning(vector, tokenize_text(request.reference_text, self.exported.processor), codes)

    def _encode_reference(self, reference: Path) -> tuple[Tensor, Tensor]:
        """The speaker vector [H] and the codes [T, codebooks] of a clip."""
        from ..model.speaker_vectors import SAMPLE_RATE, read_reference_clip

        clip = read_reference_clip(reference)
        codes = self._model.speech_tokenizer.encode(clip, sr=SAMPLE_RATE).audio_codes[0]
        return self._model.extract_speaker_embedding(clip, SAMPLE_RATE), codes

    def decode_stream(self, request: SpeechRequest, pieces: Iterator[Tensor]) -> Iterator[Tensor]:
        """Implements `FrameVoice`."""
        from overtone.data_prep.audio_codecs.qwen3_tts_stream_decoder import Qwen3TTSStream

        stream, voice = Qwen3TTSStream(self._codec_decoder), self._load_voice(request)
        if voice.reference_codes is not None:
            stream.feed(voice.reference_codes[None])  # the decoder continues the reference audio, which is not returned
        return (stream.feed(piece[None])[0] for piece in pieces)

    def decode_waves(self, requests: Sequence[SpeechRequest], results: Sequence[DecodedCodes]) -> list[np.ndarray]:
        """Implements `FrameVoice`. A reference's codes are decoded first, so that its sound continues, and their samples are removed."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        codec, voices = self._model.speech_tokenizer.model, [self._load_voice(request) for request in requests]
        heads = [
            one.codes[:0] if voice.reference_codes is None else voice.reference_codes.cpu()
            for voice, one in zip(voices, results, strict=True)
        ]
        codes = pad_sequence([torch.cat([head, one.codes]) for head, one in zip(heads, results, strict=True)], batch_first=True)
        waves = self._codec_decoder.decode(codes.to(self._decoder.first_table.device)).cpu().numpy()
        step = int(codec.get_decode_upsample_rate())
        cuts = [(len(head) * step, (len(head) + len(one.codes)) * step) for head, one in zip(heads, results, strict=True)]
        return [wave[start:end] for wave, (start, end) in zip(waves, cuts, strict=True)]


def open_synthesizer(folder: Path) -> Synthesizer:
    """Load an exported folder. Raises `UserError` if it is not one."""
    return Synthesizer(ExportedModel.read(folder))


@dataclass(frozen=True)
class ExportedVoice:
    """An exported folder or a released model, as evaluation and serving use it. Implements
    `overtone.recipes.speech.interface.VoiceFolder`."""

    exported: ExportedModel

    @classmethod
    def inspect(cls, folder: Path) -> ExportedVoice:
        """Raises `UserError` if the folder is not a Qwen3-TTS model that can speak here."""
        return cls(ExportedModel.read(folder))

    @property
    def folder(self) -> Path:
        return self.exported.folder

    @property
    def can_clone(self) -> bool:
        return self.exported.is_base

    @property
    def first_speaker(self) -> str | None:
        return next((speaker["name"] for speaker in self.exported.trained.get("speakers", [])), None)

    def check(self, request: SpeechRequest) -> None:
        check_request(self.exported, request)

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        speaker = self.exported.speaker(request.speaker) if request.reference is None else None
        return replace(request, speaker=speaker, language=self.exported.language(request.language, speaker))

    def open(self) -> Synthesizer:
        return Synthesizer(self.exported)


SPEECH = SpeechRecipe("voice_clone", ExportedVoice.inspect, base_folders=(CODEC_FOLDER,))
