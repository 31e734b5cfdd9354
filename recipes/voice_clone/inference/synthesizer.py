"""Speech from an exported Qwen3-TTS folder: the folder is opened once and speaks many requests.

with open_synthesizer(Path("exports/me")) as voice:
    (spoken,) = voice.speak([Request("Hello.", speaker="me")], Sampling(seed=1))
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from data_prep import manifest
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from finetune.errors import UserError
from finetune.hardware import sdpa_backends
from finetune.storage import files
from recipes.speech.voice import SpeechRecipe, SpeechRequest, SpeechResult, SpeechSampling

from ..model.model_configs import FRAME_RATE
from ..model.sampling_settings import STOCK, Sampling
from .exported_model import Exported

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .prompt_embeddings import Prompt, Voice
    from .talker_decoding import Said, Speech

CACHED_CLIPS = 64
"""Reference clips whose speaker vector and codes are kept, so that a clip that is used again is not encoded again."""


@dataclass(frozen=True)
class Request(SpeechRequest):
    """A speech request with what only Qwen3-TTS offers."""

    streamed_text: bool = False
    """Feed the text token by token beside the frames, instead of whole before them. Training here is on whole text."""


@dataclass(frozen=True)
class Spoken(SpeechResult):
    """Generated speech with its codes."""

    codes: np.ndarray
    """[T, 16] int64."""


def check(exported: Exported, request: SpeechRequest) -> None:
    """Raise `UserError`, which lists what exists, for a request that the folder cannot speak. Reads no weights."""
    if not request.text.strip():
        raise UserError('--text is empty; give the words to speak, as in --text "Hello, this is my voice."')
    if request.reference is None:
        exported.language(request.language, exported.speaker(request.speaker))
    else:
        check_reference(exported, request)
        exported.language(request.language, None)
    check_length(exported, request.text)
    if request.reference_text is not None:
        check_length(exported, request.reference_text)


def check_reference(exported: Exported, request: SpeechRequest) -> None:
    """Raise `UserError` unless the folder is a base export, the clip exists, and no speaker is named beside it."""
    if not exported.is_base:
        raise UserError(f"--reference: {exported.folder} is a custom_voice export, which has no speaker encoder; export with --format base")
    if request.speaker is not None:
        raise UserError("--speaker and --reference each choose a voice; give one of them")
    if request.reference is not None and not request.reference.is_file():
        raise UserError(f"--reference {request.reference}: no such file")


def check_length(exported: Exported, text: str) -> None:
    """Raise `UserError` for a text that takes more than half of the positions: speaking a token rarely takes less than a frame."""
    from ..model.sequence_layout import text_tokens

    tokens, most = len(text_tokens(text, exported.processor)), exported.ids.positions // 2
    if tokens > most:
        raise UserError(f"a text of {tokens} tokens is too long for this model, which takes {most}; cut it: {text[:60]!r} …")


class Synthesizer:
    """Owns a loaded model, on the GPU in bf16 if there is one; `close` frees its memory. For one thread at a time.

    Implements `recipes.speech.voice.Voice`.
    """

    def __init__(self, exported: Exported) -> None:
        from . import reference_package
        from .prompt_embeddings import Prompter
        from .talker_decoding import Decoder

        sdpa_backends.disable_cudnn()
        self.exported = exported
        self._model: Any = reference_package.load(exported.folder).model
        self._decoder = Decoder(self._model.talker, exported.ids)
        self._prompter = Prompter(self._model.talker, exported.ids)
        self._encoded_clips: dict[str, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory; nothing can be spoken afterwards."""
        self._model = self._decoder = self._prompter = None  # type: ignore[assignment]
        self._encoded_clips.clear()

    @property
    def speakers(self) -> tuple[str, ...]:
        """Lower-case names."""
        return tuple(sorted(self.exported.speakers))

    @property
    def languages(self) -> tuple[str, ...]:
        """`auto` first, then the names."""
        return (manifest.AUTO, *sorted(self.exported.ids.languages))

    @property
    def can_clone(self) -> bool:
        """Whether it clones from a reference clip."""
        return self.exported.is_base

    @property
    def default_temperature(self) -> float:
        """Temperature of codebook 0 where a request sets none and it is sampled."""
        return float((STOCK | self.exported.generation)["temperature"])

    @property
    def samples_by_default(self) -> bool:
        """Whether codebook 0 is sampled where a request sets nothing."""
        return bool((STOCK | self.exported.generation)["do_sample"])

    @property
    def rate(self) -> int:
        """Sample rate of every wave, in Hz."""
        return int(self._model.speech_tokenizer.get_output_sample_rate())

    @property
    def frame_rate(self) -> float:
        """Frames of codes per second of speech."""
        return FRAME_RATE

    @property
    def created(self) -> int:
        """When the folder was exported, in seconds since the epoch."""
        return int((self.exported.folder / "config.json").stat().st_mtime)

    def check(self, request: SpeechRequest) -> None:
        """Raise `UserError`, which lists what exists, for a request that this model cannot speak."""
        check(self.exported, request)

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raise `UserError` for a language that this model does not know; None is the one that the speaker was trained with."""
        self.exported.language(language, speaker)

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling | Sampling) -> list[Spoken]:
        """Speech for each request, in their order, as one batch. With the same seed a request gives the same codes alone or in a batch."""
        for request in requests:
            self.check(request)
        if not requests:
            return []
        voices = [self._voice(request) for request in requests]
        speech = self._start(requests, voices, sampling)
        for _ in speech.frames():
            pass
        results = speech.result()
        waves = self._waves(voices, results)
        return [Spoken(wave, self.rate, one.ended, one.codes.numpy()) for wave, one in zip(waves, results, strict=True)]

    def stream(self, request: SpeechRequest, sampling: SpeechSampling | Sampling) -> Generator[np.ndarray, None, Spoken]:
        """Chunks [samples] float32 as they are generated; together they are the wave of `speak`. The generator returns the result."""
        import numpy as np

        from .waveform_streaming import WaveStream, growing_pieces

        self.check(request)
        voice = self._voice(request)
        speech = self._start([request], [voice], sampling)
        stream = WaveStream(self._model.speech_tokenizer.model.decoder)
        if voice.reference_codes is not None:
            stream.feed(voice.reference_codes[None])  # the decoder continues the reference's sound, which is not returned
        chunks: list[np.ndarray] = []
        for piece in speech.pieces(growing_pieces()):
            chunks.append(stream.feed(piece.transpose(0, 1))[0].cpu().numpy())
            yield chunks[-1]
        (result,) = speech.result()
        return Spoken(np.concatenate(chunks), self.rate, result.ended, result.codes.numpy())

    def _start(self, requests: Sequence[SpeechRequest], voices: Sequence[Voice], sampling: SpeechSampling | Sampling) -> Speech:
        from .talker_decoding import Speech

        prompts = [self._prompt(request, voice) for request, voice in zip(requests, voices, strict=True)]
        settings = full_sampling(sampling)
        return Speech(
            self._decoder, prompts, settings.choices(self.exported.generation), [settings.seed] * len(prompts), settings.most_frames
        )

    def _prompt(self, request: SpeechRequest, voice: Voice) -> Prompt:
        import torch

        from ..model.sequence_layout import text_tokens

        with torch.inference_mode():
            text = text_tokens(request.text, self.exported.processor)
            prompt = self._prompter.prompt(text, self._language(request), voice, isinstance(request, Request) and request.streamed_text)
        if len(prompt.before) >= self.exported.ids.positions:
            raise UserError(
                f"--reference {request.reference} and the text fill the model's {self.exported.ids.positions} positions; cut it"
            )
        return prompt

    def _language(self, request: SpeechRequest) -> int | None:
        """Language id of the codec prefix, or None for auto. A preset that speaks a dialect uses it for Chinese and for auto."""
        speaker = self.exported.speaker(request.speaker) if request.reference is None else None
        name = self.exported.language(request.language, speaker)
        dialect = self.exported.dialect(speaker)
        if dialect is not None and name in (manifest.AUTO, "chinese"):
            return dialect
        return None if name == manifest.AUTO else self.exported.ids.languages[name]

    def _voice(self, request: SpeechRequest) -> Voice:
        from ..model.sequence_layout import text_tokens
        from .prompt_embeddings import Voice

        if request.reference is None:
            return Voice(self._decoder.first_table[self.exported.speakers[self.exported.speaker(request.speaker)]])
        vector, codes = self._encode_reference(request.reference)
        if request.reference_text is None:
            return Voice(vector)
        return Voice(vector, text_tokens(request.reference_text, self.exported.processor), codes)

    def _encode_reference(self, reference: Path) -> tuple[Tensor, Tensor]:
        """The speaker vector [H] and the codes [T, codebooks] of a clip."""
        from ..model.speaker_embeddings import SAMPLE_RATE, read_clip

        key = files.digest(reference)
        if key not in self._encoded_clips:
            clip = read_clip(reference)
            codes = self._model.speech_tokenizer.encode(clip, sr=SAMPLE_RATE).audio_codes[0]
            if len(self._encoded_clips) >= CACHED_CLIPS:
                del self._encoded_clips[next(iter(self._encoded_clips))]
            self._encoded_clips[key] = (self._model.extract_speaker_embedding(clip, SAMPLE_RATE), codes)
        return self._encoded_clips[key]

    def _waves(self, voices: Sequence[Voice], results: Sequence[Said]) -> list[np.ndarray]:
        """Waves [samples] of the codes. A reference's codes are decoded before them, so that its sound continues, and cut off again."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        from .waveform_streaming import decoded

        codec = self._model.speech_tokenizer.model
        heads = [
            one.codes[:0] if voice.reference_codes is None else voice.reference_codes.cpu()
            for voice, one in zip(voices, results, strict=True)
        ]
        codes = pad_sequence([torch.cat([head, one.codes]) for head, one in zip(heads, results, strict=True)], batch_first=True)
        waves = decoded(codec.decoder, codes.to(self._decoder.first_table.device)).cpu().numpy()
        step = int(codec.get_decode_upsample_rate())
        cuts = [(len(head) * step, (len(head) + len(one.codes)) * step) for head, one in zip(heads, results, strict=True)]
        return [wave[start:end] for wave, (start, end) in zip(waves, cuts, strict=True)]


def full_sampling(sampling: SpeechSampling | Sampling) -> Sampling:
    """The settings of every speech model as those of Qwen3-TTS, with the model's own for all others."""
    if isinstance(sampling, Sampling):
        return sampling
    return Sampling(**{field.name: getattr(sampling, field.name) for field in fields(SpeechSampling)})


def open_synthesizer(folder: Path) -> Synthesizer:
    """Load an exported folder to speak with. Raises `UserError` if it is none."""
    return Synthesizer(Exported.of(folder))


@dataclass(frozen=True)
class ExportedVoice:
    """An exported folder, or a released model, as evaluation and serving see it. Implements `recipes.speech.voice.VoiceFolder`."""

    exported: Exported

    @classmethod
    def inspect(cls, folder: Path) -> ExportedVoice:
        """Raises `UserError` if the folder is no Qwen3-TTS model that can be spoken with here."""
        return cls(Exported.of(folder))

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
        check(self.exported, request)

    def open(self) -> Synthesizer:
        return Synthesizer(self.exported)


SPEECH = SpeechRecipe(
    name="voice_clone",
    inspect=ExportedVoice.inspect,
    trained_speakers=lambda recipe_state: [speaker["name"] for speaker in recipe_state["speakers"]],
    base_folders=(CODEC_FOLDER,),
)
