"""Speech samples during training: the current model speaks `sample.prompts`; with measures that need no transcript."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.pages.spectrogram_images import draw_spectrogram
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Answer
from overtone.recipes.speech.evaluation import audio_measures
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.speech.marked_audio_encoding import UNNAMED, encode_marked_flac

MAX_SECONDS = 12.0
"""Time limit. Samples may be generated on one core beside the run, and speech that is longer than this usually never ends."""
SAMPLING = SpeechSampling(max_seconds=MAX_SECONDS)
"""The same seed for each checkpoint, and the model's own temperature."""


def speak_prompts(recipe: SpeechRecipe, folder: Path, prompts: list[str]) -> list[Answer]:
    """An answer to each prompt, `text` or `speaker|text`; the first trained speaker speaks those that name none. The seed is fixed."""
    exported = recipe.inspect(folder)
    requests = [parse_prompt(prompt, exported.first_speaker) for prompt in prompts]
    with closing(exported.open()) as voice:
        results = voice.speak(requests, SAMPLING)
    return [make_answer(request, result) for request, result in zip(requests, results, strict=True)]


def check_prompts(prompts: Collection[str], speakers: Collection[str]) -> None:
    """Raises `UserError` for a prompt without words, or with a speaker who is not trained, before the run starts."""
    for prompt in prompts:
        request = parse_prompt(prompt, None)
        if not request.text:
            raise UserError(f"sample.prompts: {prompt!r} has no text to speak; write a text, or speaker|text")
        if request.speaker is not None and request.speaker not in speakers:
            raise UserError(f"sample.prompts: {prompt!r} names a speaker who is not in the data; speakers: {', '.join(sorted(speakers))}")


def parse_prompt(prompt: str, speaker: str | None) -> SpeechRequest:
    """`bert|Good day.` is a text for bert; one without `|` is for `speaker`."""
    name, mark, text = prompt.partition("|")
    return SpeechRequest(text.strip(), manifest.parse_speaker(name)) if mark else SpeechRequest(prompt.strip(), speaker)


def make_answer(request: SpeechRequest, result: SpeechResult) -> Answer:
    """The speech as a FLAC file, its spectrogram, and its speaking rate. A rate that rises from sample to sample means shifted labels."""
    if result.rate != MASTER_RATE:
        raise ValueError(f"the model's sample rate is {result.rate} Hz; {MASTER_RATE} Hz is expected")
    sound = audio_measures.measure(result.wave)
    pace = len(request.text) / sound.voiced_seconds if result.ended and sound.voiced_seconds > 0 else None
    numbers = {"seconds": sound.seconds, "silence": sound.silent_seconds / max(sound.seconds, 1e-9), "ended": float(result.ended)}
    numbers |= {} if pace is None else {"characters_per_second": pace}
    summary = f"{request.speaker or 'the only voice'}, {sound.seconds:.2f} s, {describe_pace(result.ended, pace)}"
    if not len(result.wave):
        return Answer(summary, numbers=numbers)  # TensorBoard fails on audio without samples
    return Answer(summary, encode_marked_flac(result.wave, result.rate, UNNAMED), draw_spectrogram(result.wave), numbers)


def describe_pace(ended: bool, pace: float | None) -> str:
    """`14.2 characters per second`, or why there is no such figure."""
    if not ended:
        return "cut off at the time limit"
    return "silent" if pace is None else f"{pace:.1f} characters per second"
