"""A second speech model, of a few lines: every letter is a tone. It has speakers by name, clones a clip's pitch, and knows no language.

`python -m tests.recipes.voice_clone.tones PORT FOLDER…` serves it, and prints which modules that took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from overtone.finetune.errors import UserError
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.speech.serving.serve_command import serve

RATE, FRAME_RATE, FILE = 24_000, 20.0, "tones.json"
FRAME = round(RATE / FRAME_RATE)


@dataclass(frozen=True)
class ToneFolder:
    """A folder whose `tones.json` says which pitch in Hz each speaker has."""

    folder: Path
    pitches: dict[str, float]
    can_clone: bool = True

    @classmethod
    def inspect(cls, folder: Path) -> ToneFolder:
        if not (folder / FILE).is_file():
            raise UserError(f"{folder}: no {FILE} in it")
        return cls(folder, json.loads((folder / FILE).read_text()))

    @property
    def speakers(self) -> tuple[str, ...]:
        return tuple(self.pitches)

    @property
    def first_speaker(self) -> str | None:
        return next(iter(self.pitches), None)

    def check(self, request: SpeechRequest) -> None:
        if request.reference is None and request.speaker not in self.pitches:
            raise UserError(f"speaker {request.speaker}: there are {', '.join(self.pitches)}")

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        return request

    def open(self) -> Tones:
        return Tones(self)


class Tones:
    """The loaded model. Each letter lasts a frame, at the speaker's pitch plus its number in Hz; sampling only shifts the phase."""

    can_clone, rate, frame_rate, languages = True, RATE, FRAME_RATE, ()
    default_temperature, samples_by_default, created = 1.0, True, 1_700_000_000

    def __init__(self, exported: ToneFolder) -> None:
        self.exported, self.speakers, self.closed = exported, tuple(exported.pitches), False

    def check(self, request: SpeechRequest) -> None:
        self.exported.check(request)

    def check_language(self, language: str | None, speaker: str | None) -> None:
        if language is not None:
            raise UserError(f"language {language!r}: tones have none")

    def speak(self, requests: Sequence[SpeechRequest], sampling: SpeechSampling) -> list[SpeechResult]:
        return [exhaust(self.stream(request, sampling)) for request in requests]

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechResult]:
        pitch = self.exported.pitches[request.speaker] if request.speaker is not None else clip_pitch(request.reference)
        times, chunks = np.arange(FRAME) / RATE, []
        for letter in request.text[: self._frames(sampling)]:
            chunks.append((0.3 * np.sin(2 * np.pi * (pitch + ord(letter)) * times + sampling.seed)).astype(np.float32))
            yield chunks[-1]
        return SpeechResult(np.concatenate(chunks), RATE, len(request.text) <= self._frames(sampling))

    def close(self) -> None:
        self.closed = True

    @staticmethod
    def _frames(sampling: SpeechSampling) -> int:
        return round(sampling.max_seconds * FRAME_RATE)


def exhaust(chunks: Generator[np.ndarray, None, SpeechResult]) -> SpeechResult:
    """What the generator returns."""
    while True:
        try:
            next(chunks)
        except StopIteration as end:
            return end.value


def clip_pitch(clip: Path | None) -> float:
    """Hz of a clip's loudest frequency."""
    assert clip is not None
    samples, rate = soundfile.read(clip)
    return float(np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples))


def tone_folder(folder: Path, **pitches: float) -> Path:
    folder.mkdir(parents=True)
    (folder / FILE).write_text(json.dumps(pitches or {"low": 110.0, "high": 440.0}))
    return folder


TONES = SpeechRecipe("tones", ToneFolder.inspect, trained_speakers=lambda state: state["speakers"])

if __name__ == "__main__":
    code = serve(TONES.inspect, {folder: Path(folder) for folder in sys.argv[2:]}, ["--port", sys.argv[1], "--max-seconds", "1"])
    # Few enough for the pipe, which is read only after this process has ended.
    print(
        "modules:",
        *(name for name in sorted(sys.modules) if name in ("qwen_tts", "torch") or name.startswith("overtone.recipes.")),
        flush=True,
    )
    sys.exit(code)
