"""Speech from an exported Qwen3-TTS folder: the model is loaded once and speaks many requests.

    with open_synthesizer(Path("exports/me")) as voice:
        (spoken,) = voice.speak([Request("Hello.", speaker="me")], SamplingSettings(seed=1))

torch and the modules that import it are imported inside the functions: `overtone generate --help` and the checks of a request load no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.finetune.hardware import cudnn_sdpa
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.reference_cache import ReferenceClips

from ..model.config_factory import FRAME_RATE
from ..model.sampling_settings import SCHEME
from .exported_folder import ExportedModel

if TYPE_CHECKING:
    from torch import Tensor

    from overtone.recipes.speech.continuous_speech_batch import NewFrames
    from overtone.recipes.speech.decoding.token_sampling import FrameSampler

    from .decoding import TalkerBatch
    from .prompt_embeddings import PromptEmbeddings, VoiceConditioning


@dataclass(frozen=True)
class Request(SpeechRequest):
    """A speech request with the options that only Qwen3-TTS has."""

    streamed_text: bool = False
    """Feed the text token by token with the frames, instead of whole before them. The recipe trains with whole text."""


class Synthesizer(FrameVoice["PromptEmbeddings", "FrameSampler", Any]):
    """Owns a loaded model, on the GPU in bf16 if there is one; `close` frees its memory. Not thread-safe.

    Implements `overtone.recipes.speech.interface.Voice`.
    """

    def __init__(self, exported: ExportedModel) -> None:
        from overtone.data_prep.audio_codecs.qwen3_tts_frame_decoder import Qwen3TTSFrameDecoder
        from overtone.data_prep.audio_codecs.qwen3_tts_stream_decoder import Qwen3TTSStreamDecoder

        from . import stock_qwen_tts
        from .decoding import TalkerDecoder
        from .prompt_embeddings import PromptEmbedder

        super().__init__(exported, SCHEME)
        cudnn_sdpa.disable_cudnn()
        self.exported = exported
        self._model: Any = stock_qwen_tts.load(exported.folder).model
        self._decoder = TalkerDecoder(self._model.talker, exported.ids)
        self._embedder = PromptEmbedder(self._model.talker, exported.ids)
        codec = self._model.speech_tokenizer.model.decoder
        self.joins_streams = codec.device.type == "cpu"
        self._codec_decoder: Any = Qwen3TTSFrameDecoder(codec) if self.joins_streams else Qwen3TTSStreamDecoder(codec)
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
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""
        return int(self._model.speech_tokenizer.get_output_sample_rate())

    @property
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""
        return FRAME_RATE

    def make_sampler(self, sampling: SpeechSampling) -> FrameSampler:
        """Implements `FrameVoice`."""
        from overtone.recipes.speech.decoding.token_sampling import make_frame_sampler

        return make_frame_sampler(SCHEME, self.exported.generation, sampling)

    def open_frames(self, requests: int) -> TalkerBatch:
        """Implements `FrameVoice`."""
        from .decoding import TalkerBatch

        return TalkerBatch(self._decoder, requests)

    def make_prompt(self, request: SpeechRequest) -> PromptEmbeddings:
        """Implements `FrameVoice`."""
        import torch

        from ..model.sequence_layout import tokenize_text

        voice = self._load_voice(request)
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
        speaker = self.exported.find_speaker(request.speaker) if request.reference is None else None
        name = self.exported.choose_language(request.language, speaker)
        dialect = self.exported.dialect(speaker)
        if dialect is not None and name in (manifest.AUTO, "chinese"):
            return dialect
        return None if name == manifest.AUTO else self.exported.ids.languages[name]

    def _load_voice(self, request: SpeechRequest) -> VoiceConditioning:
        from ..model.sequence_layout import tokenize_text
        from .prompt_embeddings import VoiceConditioning

        if request.reference is None:
            return VoiceConditioning(self._decoder.first_table[self.exported.speakers[self.exported.find_speaker(request.speaker)]])
        vector, codes = self._reference_clips.get(request.reference)
        if request.reference_text is None:
            return VoiceConditioning(vector)
        return VoiceConditioning(vector, tokenize_text(request.reference_text, self.exported.processor), codes)

    def _encode_reference(self, reference: Path) -> tuple[Tensor, Tensor]:
        """The speaker vector [H] and the codes [T, codebooks] of a clip."""
        from ..model.reference_clips import SAMPLE_RATE, read_reference_clip

        clip = read_reference_clip(reference)
        codes = self._model.speech_tokenizer.encode(clip, sr=SAMPLE_RATE).audio_codes[0]
        return self._model.extract_speaker_embedding(clip, SAMPLE_RATE), codes

    def open_stream(self, request: SpeechRequest) -> Any:
        """Implements `FrameVoice`."""
        stream, voice = self._codec_decoder.open(), self._load_voice(request)
        if voice.reference_codes is not None:
            self._codec_decoder.feed([stream], [voice.reference_codes])  # it continues the reference audio, which is not returned
        return stream

    def decode_frames(self, new: Sequence[NewFrames[Any]]) -> list[Tensor]:
        """Implements `FrameVoice`."""
        import torch

        filled = [one for one in new if len(one.codes)]
        waves = iter(self._codec_decoder.feed([one.stream for one in filled], [one.codes for one in filled]) if filled else [])
        return [next(waves) if len(one.codes) else torch.zeros(0) for one in new]

    def decode_waves(self, requests: Sequence[SpeechRequest], codes: Sequence[Tensor]) -> list[np.ndarray]:
        """Implements `FrameVoice`. A reference's codes are decoded first, so that its sound continues, and their samples are removed."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        codec, voices = self._model.speech_tokenizer.model, [self._load_voice(request) for request in requests]
        heads = [
            one[:0] if voice.reference_codes is None else voice.reference_codes.cpu() for voice, one in zip(voices, codes, strict=True)
        ]
        padded = pad_sequence([torch.cat(both) for both in zip(heads, codes, strict=True)], batch_first=True)
        waves = self._codec_decoder.decode(padded.to(self._decoder.first_table.device)).cpu().numpy()
        step = int(codec.get_decode_upsample_rate())
        cuts = [(len(head) * step, (len(head) + len(one)) * step) for head, one in zip(heads, codes, strict=True)]
        return [wave[start:end] for wave, (start, end) in zip(waves, cuts, strict=True)]


def open_synthesizer(folder: Path) -> Synthesizer:
    """Load an exported folder. Raises `UserError` if it is not one."""
    return Synthesizer(ExportedModel.inspect(folder))
