"""From text to sound: an exported folder is opened once and speaks many requests.

with open_synthesizer(Path("exports/me")) as voice:
    (spoken,) = voice.speak([Request("Hello.", speaker="me")], Sampling(seed=1))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from data_prep import manifest
from finetune.errors import UserError

from .exported import Exported

if TYPE_CHECKING:
    import numpy as np

FRAME_RATE = 12.5
"""Codec frames per second of speech; generation makes one at a time."""


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


@dataclass(frozen=True)
class Sampling:
    """How codes are chosen; the numbers are the stock package's own. Greedy ignores all but `max_seconds`."""

    greedy: bool = False
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    seed: int = 0
    max_seconds: float = 60.0
    """Speech is cut off there if the model does not end by itself."""

    @property
    def most_frames(self) -> int:
        return math.ceil(self.max_seconds * FRAME_RATE)


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
    from .layout import text_tokens

    if not request.text.strip():
        raise UserError('--text is empty; give the words to speak, as in --text "Hello, this is my voice."')
    if request.reference is None:
        exported.language(request.language, exported.speaker(request.speaker))
    else:
        check_reference(exported, request)
        exported.language(request.language, None)
    text_tokens(request.text, exported.processor)


def check_reference(exported: Exported, request: Request) -> None:
    """A clip to clone needs a base export, a file, and no second voice."""
    if not exported.is_base:
        raise UserError(f"--reference: {exported.folder} is a custom_voice export, which has no speaker encoder; export with --format base")
    if request.speaker is not None:
        raise UserError("--speaker and --reference each choose a voice; give one of them")
    if request.reference is not None and not request.reference.is_file():
        raise UserError(f"--reference {request.reference}: no such file")


class Synthesizer:
    """Owns a loaded model, on the GPU in bf16 if there is one; `close` gives its memory back."""

    def __init__(self, exported: Exported) -> None:
        from . import stock

        self.exported = exported
        self._model: Any = stock.load(exported.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._model = None

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
    def rate(self) -> int:
        """Hz of every wave."""
        return int(self._model.model.speech_tokenizer.get_output_sample_rate())

    def check(self, request: Request) -> None:
        """Raise `UserError`, which lists what exists, for a request that this model cannot speak."""
        check(self.exported, request)

    def speak(self, requests: Sequence[Request], sampling: Sampling) -> list[Spoken]:
        """The requests as one batch, in their order. What a request says does not depend on what else is in the batch."""
        for request in requests:
            self.check(request)
        return [self._speak_one(request, sampling) for request in requests]

    def stream(self, request: Request, sampling: Sampling) -> Iterator[np.ndarray]:
        """Chunks [samples] float32 as they are made; together they are the wave of `speak`."""
        (spoken,) = self.speak([request], sampling)
        yield spoken.wave

    def _speak_one(self, request: Request, sampling: Sampling) -> Spoken:
        import torch

        from . import stock
        from .speakers import SAMPLE_RATE, read_clip

        torch.manual_seed(sampling.seed)
        chosen: dict[str, Any] = {"do_sample": not sampling.greedy, "subtalker_dosample": not sampling.greedy}
        for name in ("temperature", "top_k", "top_p"):
            chosen |= {name: getattr(sampling, name), f"subtalker_{name}": getattr(sampling, name)}
        chosen |= {"repetition_penalty": 1.0 if sampling.greedy else sampling.repetition_penalty}
        chosen |= {"max_new_tokens": sampling.most_frames + 1, "non_streaming_mode": True}
        codes: list[Any] = []
        tokenizer = self._model.model.speech_tokenizer
        decode = tokenizer.decode
        tokenizer.decode = lambda encoded: codes.extend(one["audio_codes"] for one in encoded) or decode(encoded)  # type: ignore[func-returns-value]
        try:
            if request.reference is not None:
                chosen |= {"language": self.exported.language(request.language, None), "text": request.text}
                clip = (read_clip(request.reference), SAMPLE_RATE)
                only_voice = request.reference_text is None
                waves, rate = self._model.generate_voice_clone(
                    ref_audio=clip, ref_text=request.reference_text, x_vector_only_mode=only_voice, **chosen
                )
            else:
                speaker = self.exported.speaker(request.speaker)
                chosen |= {"language": self.exported.language(request.language, speaker), "text": request.text}
                if self.is_base:
                    voice = stock.stored_voice(self._model, self.exported.speakers[speaker])
                    waves, rate = self._model.generate_voice_clone(voice_clone_prompt=[voice], **chosen)
                else:
                    waves, rate = self._model.generate_custom_voice(speaker=speaker, **chosen)
        finally:
            del tokenizer.decode
        frames = round(len(waves[0]) / rate * FRAME_RATE)
        return Spoken(waves[0], rate, codes[0][-frames:].cpu().numpy(), ended=frames < sampling.most_frames)


def open_synthesizer(folder: Path) -> Synthesizer:
    """Load an exported folder to speak with. Raises `UserError` if it is none."""
    return Synthesizer(Exported.of(folder))
