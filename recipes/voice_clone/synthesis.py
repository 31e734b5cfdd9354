"""From text to sound: an exported folder is opened once and speaks many requests.

with open_synthesizer(Path("exports/me")) as voice:
    (spoken,) = voice.speak([Request("Hello.", speaker="me")], Sampling(seed=1))
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from data_prep import manifest
from finetune import files, sdpa
from finetune.errors import UserError

from .exported import Exported
from .sampling import STOCK, Sampling

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .decoding import Said, Speech
    from .prompting import Prompt, Voice

CLONES = 64
"""Reference clips whose voice is kept, so that a clip that is used again is not read again."""


@dataclass(frozen=True)
class Request:
    """One text in one voice."""

    text: str
    speaker: str | None
    """A voice of the model; None is its only one, or the one of `reference`."""
    language: str | None = None
    """Name, ISO code or `auto`; None is the language that the speaker was trained with."""
    reference: Path | None = None
    """Clip of a voice to clone instead (base exports only)."""
    reference_text: str | None = None
    """What the clip says: then its manner is continued too, otherwise only its voice is used."""
    streamed_text: bool = False
    """Give the text token by token beside the frames, instead of whole before them. Training here is on whole text."""


@dataclass(frozen=True)
class Spoken:
    """What came of a request."""

    wave: np.ndarray
    """[samples] float32, mono."""
    rate: int
    """Hz."""
    codes: np.ndarray
    """[T, 16] int64."""
    ended: bool
    """False: cut off at `max_seconds`."""


def check(exported: Exported, request: Request) -> None:
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


def check_reference(exported: Exported, request: Request) -> None:
    """A clip to clone needs a base export, a file, and no second voice."""
    if not exported.is_base:
        raise UserError(f"--reference: {exported.folder} is a custom_voice export, which has no speaker encoder; export with --format base")
    if request.speaker is not None:
        raise UserError("--speaker and --reference each choose a voice; give one of them")
    if request.reference is not None and not request.reference.is_file():
        raise UserError(f"--reference {request.reference}: no such file")


def check_length(exported: Exported, text: str) -> None:
    """A token is hardly spoken in less than a frame, so text may take half of the positions."""
    from .layout import text_tokens

    tokens, most = len(text_tokens(text, exported.processor)), exported.ids.positions // 2
    if tokens > most:
        raise UserError(f"a text of {tokens} tokens is too long for this model, which takes {most}; cut it: {text[:60]!r} …")


class Synthesizer:
    """Owns a loaded model, on the GPU in bf16 if there is one; `close` gives its memory back. For one thread at a time."""

    def __init__(self, exported: Exported) -> None:
        from . import stock
        from .decoding import Decoder
        from .prompting import Prompter

        sdpa.disable_cudnn()
        self.exported = exported
        self._model: Any = stock.load(exported.folder).model
        self._decoder = Decoder(self._model.talker, exported.ids)
        self._prompter = Prompter(self._model.talker, exported.ids)
        self._clones: dict[str, tuple[Tensor, Tensor]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """After it, nothing can be spoken."""
        self._model = self._decoder = self._prompter = None  # type: ignore[assignment]
        self._clones.clear()

    @property
    def speakers(self) -> tuple[str, ...]:
        """Lower-case names."""
        return tuple(sorted(self.exported.speakers))

    @property
    def languages(self) -> tuple[str, ...]:
        """`auto` first, then the names."""
        return (manifest.AUTO, *sorted(self.exported.ids.languages))

    @property
    def is_base(self) -> bool:
        """Whether it clones from a reference clip."""
        return self.exported.is_base

    @property
    def temperature(self) -> float:
        """What codebook 0 is sampled at if nothing else is asked, and it is sampled."""
        return float((STOCK | self.exported.generation)["temperature"])

    @property
    def samples(self) -> bool:
        """Whether codebook 0 is sampled if nothing else is asked."""
        return bool((STOCK | self.exported.generation)["do_sample"])

    @property
    def rate(self) -> int:
        """Hz of every wave."""
        return int(self._model.speech_tokenizer.get_output_sample_rate())

    def check(self, request: Request) -> None:
        """Raise `UserError`, which lists what exists, for a request that this model cannot speak."""
        check(self.exported, request)

    def speak(self, requests: Sequence[Request], sampling: Sampling) -> list[Spoken]:
        """The requests as one batch, in their order. Each says what it says alone with the same seed, whatever else is in the batch."""
        for request in requests:
            self.check(request)
        if not requests:
            return []
        voices = [self._voice(request) for request in requests]
        speech = self._start(requests, voices, sampling)
        for _ in speech.frames():
            pass
        said = speech.result()
        waves = self._waves(voices, said)
        return [Spoken(wave, self.rate, one.codes.numpy(), one.ended) for wave, one in zip(waves, said, strict=True)]

    def stream(self, request: Request, sampling: Sampling) -> Generator[np.ndarray, None, Spoken]:
        """Chunks [samples] float32 as they are made; together they are the wave of `speak`. The generator returns what was spoken."""
        import numpy as np

        from .waveform import WaveStream, growing_pieces

        self.check(request)
        voice = self._voice(request)
        speech = self._start([request], [voice], sampling)
        stream = WaveStream(self._model.speech_tokenizer.model.decoder)
        if voice.reference_codes is not None:
            stream.feed(voice.reference_codes[None])  # the speech goes on from the sound of the reference, which is not heard again
        chunks: list[np.ndarray] = []
        for piece in speech.pieces(growing_pieces()):
            chunks.append(stream.feed(piece.transpose(0, 1))[0].cpu().numpy())
            yield chunks[-1]
        (said,) = speech.result()
        return Spoken(np.concatenate(chunks), self.rate, said.codes.numpy(), said.ended)

    def _start(self, requests: Sequence[Request], voices: Sequence[Voice], sampling: Sampling) -> Speech:
        from .decoding import Speech

        prompts = [self._prompt(request, voice) for request, voice in zip(requests, voices, strict=True)]
        return Speech(
            self._decoder, prompts, sampling.choices(self.exported.generation), [sampling.seed] * len(prompts), sampling.most_frames
        )

    def _prompt(self, request: Request, voice: Voice) -> Prompt:
        import torch

        from .layout import text_tokens

        with torch.inference_mode():
            text = text_tokens(request.text, self.exported.processor)
            prompt = self._prompter.prompt(text, self._language(request), voice, request.streamed_text)
        if len(prompt.before) >= self.exported.ids.positions:
            raise UserError(
                f"--reference {request.reference} and the text fill the model's {self.exported.ids.positions} positions; cut it"
            )
        return prompt

    def _language(self, request: Request) -> int | None:
        """Id of the codec prefix; a preset that speaks a dialect has it as its Chinese, and where nothing is said."""
        speaker = self.exported.speaker(request.speaker) if request.reference is None else None
        name = self.exported.language(request.language, speaker)
        dialect = self.exported.dialect(speaker)
        if dialect is not None and name in (manifest.AUTO, "chinese"):
            return dialect
        return None if name == manifest.AUTO else self.exported.ids.languages[name]

    def _voice(self, request: Request) -> Voice:
        from .layout import text_tokens
        from .prompting import Voice

        if request.reference is None:
            return Voice(self._decoder.first_table[self.exported.speakers[self.exported.speaker(request.speaker)]])
        vector, codes = self._clone(request.reference)
        if request.reference_text is None:
            return Voice(vector)
        return Voice(vector, text_tokens(request.reference_text, self.exported.processor), codes)

    def _clone(self, reference: Path) -> tuple[Tensor, Tensor]:
        """The speaker vector [H] and the codes [T, codebooks] of a clip."""
        from .speakers import SAMPLE_RATE, read_clip

        key = files.digest(reference)
        if key not in self._clones:
            clip = read_clip(reference)
            codes = self._model.speech_tokenizer.encode(clip, sr=SAMPLE_RATE).audio_codes[0]
            if len(self._clones) >= CLONES:
                del self._clones[next(iter(self._clones))]
            self._clones[key] = (self._model.extract_speaker_embedding(clip, SAMPLE_RATE), codes)
        return self._clones[key]

    def _waves(self, voices: Sequence[Voice], said: Sequence[Said]) -> list[np.ndarray]:
        """[samples] each. A reference's codes come first, so that the speech goes on from their sound, and are cut off again."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        from .waveform import decoded

        codec = self._model.speech_tokenizer.model
        heads = [
            one.codes[:0] if voice.reference_codes is None else voice.reference_codes.cpu() for voice, one in zip(voices, said, strict=True)
        ]
        codes = pad_sequence([torch.cat([head, one.codes]) for head, one in zip(heads, said, strict=True)], batch_first=True)
        waves = decoded(codec.decoder, codes.to(self._decoder.first_table.device)).cpu().numpy()
        step = int(codec.get_decode_upsample_rate())
        cuts = [(len(head) * step, (len(head) + len(one.codes)) * step) for head, one in zip(heads, said, strict=True)]
        return [wave[start:end] for wave, (start, end) in zip(waves, cuts, strict=True)]


def open_synthesizer(folder: Path) -> Synthesizer:
    """Load an exported folder to speak with. Raises `UserError` if it is none."""
    return Synthesizer(Exported.of(folder))
