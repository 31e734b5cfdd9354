"""Listening while a run trains: the sentences of `sample.prompts`, spoken by a snapshot of it, with what can be told without a listener."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from data_prep import manifest
from data_prep.audio import MASTER_RATE, Audio, flac
from data_prep.report_sounds import spectrogram
from finetune.errors import UserError
from finetune.recipe import Answer

from . import eval_sound
from .exported import Exported
from .sampling import Sampling
from .synthesis import Request, Spoken, Synthesizer

MOST_SECONDS = 12.0
"""Longest answer: it may be made on one core beside the run, and what does not end by then will not end."""


def sample(folder: Path, prompts: list[str]) -> list[Answer]:
    """An answer to each prompt, `text` or `speaker|text`; without a speaker, the first that was trained says it. The seed is fixed."""
    exported = Exported.of(folder)
    first = next((speaker["name"] for speaker in exported.trained.get("speakers", [])), None)
    requests = [request(prompt, first) for prompt in prompts]
    with Synthesizer(exported) as voice:
        spoken = voice.speak(requests, Sampling(max_seconds=MOST_SECONDS))
    return [answer(asked, one) for asked, one in zip(requests, spoken, strict=True)]


def check(prompts: Collection[str], speakers: Collection[str]) -> None:
    """Raise `UserError` for a prompt without words, or for a speaker who is not trained, before the run starts."""
    for prompt in prompts:
        asked = request(prompt, None)
        if not asked.text:
            raise UserError(f"sample.prompts: {prompt!r} holds no text to say; write the words, or speaker|words")
        if asked.speaker is not None and asked.speaker not in speakers:
            raise UserError(f"sample.prompts: {prompt!r} names a speaker who is not in the data; there are {', '.join(sorted(speakers))}")


def request(prompt: str, speaker: str | None) -> Request:
    """`bert|Good day.` is said by bert."""
    name, mark, text = prompt.partition("|")
    return Request(text.strip(), manifest.speaker_name(name)) if mark else Request(prompt.strip(), speaker)


def answer(asked: Request, spoken: Spoken) -> Answer:
    """The sound, its picture, and its pace: a rate that rises from round to round means that the labels are shifted."""
    if spoken.rate != MASTER_RATE:
        raise ValueError(f"the model speaks at {spoken.rate} Hz, and {MASTER_RATE} are expected")
    sound = eval_sound.measure(spoken.wave)
    pace = len(asked.text) / sound.voiced_seconds if spoken.ended and sound.voiced_seconds > 0 else None
    numbers = {"seconds": sound.seconds, "silence": sound.silent_seconds / max(sound.seconds, 1e-9), "ended": float(spoken.ended)}
    numbers |= {} if pace is None else {"characters_per_second": pace}
    told = f"{asked.speaker or 'the only voice'}, {sound.seconds:.2f} s, {manner(spoken.ended, pace)}"
    if not len(spoken.wave):
        return Answer(told, numbers=numbers)  # a player of nothing is an error in TensorBoard
    return Answer(told, flac(Audio(spoken.wave, spoken.rate)), spectrogram(spoken.wave), numbers)


def manner(ended: bool, pace: float | None) -> str:
    """`14.2 characters a second`, or why there is no such figure."""
    if not ended:
        return "cut off, it did not end by itself"
    return "silent" if pace is None else f"{pace:.1f} characters a second"
