"""The page of `serve`: one text, one voice or two beside each other, to hear and to see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.audio import Audio, flac
from data_prep.report_sounds import data_uri, spectrogram
from finetune.errors import UserError

from .sampling import Sampling
from .serving_api import LARGEST_SEED, Limits
from .serving_clips import Clips
from .serving_queue import ClosedError, FullError, Speech
from .shapes import FRAME_RATE
from .synthesis import Request

if TYPE_CHECKING:
    import gradio

STYLE = Path(__file__).with_name("serving_page.css")
NOBODY = "– nobody –"
"""The second voice, if there is only one to hear."""
CLIP = "the reference clip"
"""The voice of a base export that is not one of its own."""
TRAINED = "as trained"
HOTTEST = 1.5
"""Temperature."""
HEAD = '<h1 class="head">Overtone</h1><p class="head">Hear what was learned: one voice, or two beside each other on the same text.</p>'
EXAMPLE = "The morning train leaves at seven, and it is never late."


@dataclass(frozen=True)
class Wanted:
    """One side of the page: what is to speak."""

    title: str
    model: str
    request: Request


@dataclass(frozen=True)
class Heard:
    """What came of it, as the browser plays and shows it."""

    title: str
    seconds: float
    cut: bool
    sound: str
    """Data URIs: speech is never written to the disk, and nobody else can ask for it."""
    picture: str


class Booth:
    """What the page's controls do."""

    def __init__(self, speech: Speech, limits: Limits, clips: Clips) -> None:
        self.speech, self.limits, self.clips = speech, limits, clips

    def voices(self, model: str) -> list[str]:
        """Who can speak with a model."""
        voice = self.speech.models.get(model)
        return [] if voice is None else [*voice.speakers, *([CLIP] if voice.is_base else [])]

    def only_clones(self, model: str) -> bool:
        """Whether a model has no voice by name."""
        return self.voices(model) == [CLIP]

    async def speak(
        self,
        text: str,
        model: str,
        voice: str | None,
        other_model: str,
        other_voice: str | None,
        clip: str | None,
        clip_text: str,
        language: str,
        temperature: float,
        greedy: bool,
        seed: float,
    ) -> AsyncGenerator[list[str], None]:
        """HTML of the two sides, again and again while they are spoken, one after the other."""
        from gradio import Error  # what a page shows as a message

        try:
            sampling = self._sampling(temperature, greedy, seed)
            asked = [(model, voice), *([(other_model, other_voice)] if other_model != NOBODY else [])]
            self._require_texts(text, clip_text)
            reference = await self._reference(asked, clip)
            wanted = [await asyncio.to_thread(self._wanted, text, *side, reference, clip_text, language) for side in asked]
            async with aclosing(self._shown(wanted, sampling)) as shown:
                async for sides in shown:
                    yield sides
        except (UserError, FullError, ClosedError) as error:
            raise Error(str(error), print_exception=False) from error

    def _sampling(self, temperature: float, greedy: bool, seed: float) -> Sampling:
        """Raises `UserError` for settings that the page's own controls cannot have."""
        if not isinstance(seed, int | float) or not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"the seed {seed!r} is not a number from 0 to {LARGEST_SEED}")
        if not isinstance(temperature, int | float) or not 0 < temperature <= HOTTEST:
            raise UserError(f"the temperature {temperature!r} is not above 0 and at most {HOTTEST:g}")
        return Sampling(greedy=bool(greedy), temperature=temperature, seed=int(seed), max_seconds=self.limits.seconds)

    def _require_texts(self, text: str, clip_text: str) -> None:
        """Raises `UserError` for what is not spoken, and what is too long."""
        if not isinstance(text, str) or not text.strip():
            raise UserError("write what is to be said")
        for name, written in (("text", text), ("text of the clip", clip_text or "")):
            if len(written) > self.limits.chars:
                raise UserError(f"the {name} has {len(written)} characters; {self.limits.chars} are the most")

    async def _reference(self, asked: Sequence[tuple[str, str | None]], clip: str | None) -> Path | None:
        """The clip, decoded, if one of the two sides speaks with it. Raises `UserError`."""
        for model, voice in asked:
            if voice not in self.voices(model):
                raise UserError(f"{model} has no voice {voice!r}; choose one of its own")
        if not any(voice == CLIP for _, voice in asked):
            return None
        if clip is None:
            raise UserError("record or upload a reference clip first, below the voices, or choose a voice by name")
        return await self.clips.decode(clip)

    def _wanted(self, text: str, model: str, voice: str | None, reference: Path | None, clip_text: str, language: str) -> Wanted:
        """Raises `UserError` for what cannot be spoken."""
        tongue = None if language == TRAINED else language
        if voice == CLIP:
            request = Request(text, None, tongue, reference, (clip_text or "").strip() or None)
        else:
            request = Request(text, voice, tongue)
        self.speech.models[model].check(request)
        return Wanted(f"{model} · {voice}", model, request)

    async def _shown(self, wanted: Sequence[Wanted], sampling: Sampling) -> AsyncGenerator[list[str], None]:
        done: list[Heard] = []
        for one in wanted:
            yield sides(done, f"{one.title} waits its turn")
            waves: list[np.ndarray] = []
            async with aclosing(self.speech.speak(one.model, one.request, sampling)) as chunks:
                async for wave in chunks:
                    waves.append(wave)
                    seconds = sum(map(len, waves)) / self.speech.models[one.model].rate
                    yield sides(done, f"{one.title} is speaking: {seconds:.1f} s")
            # Drawn aside: the others would wait for the picture as for the speech.
            done.append(await asyncio.to_thread(heard, one.title, np.concatenate(waves), self.speech.models[one.model].rate, sampling))
        yield sides(done)


def heard(title: str, wave: np.ndarray, rate: int, sampling: Sampling) -> Heard:
    """A wave [samples] at `rate` Hz as player and picture."""
    seconds, sound = len(wave) / rate, flac(Audio(wave, rate))
    picture = data_uri("image/png", spectrogram(wave)) if len(wave) else ""
    return Heard(title, seconds, seconds >= sampling.max_seconds - 1 / FRAME_RATE, data_uri("audio/flac", sound), picture)


def sides(done: Sequence[Heard], working: str = "") -> list[str]:
    """HTML of both sides; what is going on stands in the first that is free."""
    longest = max((one.seconds for one in done), default=0.0)
    cards = [card(one, longest) for one in done]
    return [*cards, *([f'<p class="working">{escape(working)}</p>'] if working else []), "", ""][:2]


def card(one: Heard, longest: float) -> str:
    """HTML: player and spectrogram, as wide as it is long beside the longest. A line goes over the picture while it plays."""
    width = 100 * one.seconds / longest if longest else 100
    cut = " · cut off, it did not end by itself" if one.cut else ""
    follow = "this.closest('.heard').style.setProperty('--at', this.currentTime / this.duration)"
    return (
        f'<figure class="heard"><figcaption><b>{escape(one.title)}</b><span>{one.seconds:.2f} s{cut}</span></figcaption>'
        f'<div class="sight" style="width: {width:.1f}%"><img src="{one.picture}" alt="spectrogram up to 12 kHz"></div>'
        f'<audio controls preload="auto" src="{one.sound}" ontimeupdate="{follow}"></audio></figure>'
    )


def build(booth: Booth) -> gradio.Blocks:
    """The page without its server."""
    import gradio

    models = list(booth.speech.models)
    room = booth.speech.room
    with gradio.Blocks(title="Overtone", analytics_enabled=False) as page:
        gradio.HTML(HEAD)
        text = gradio.Textbox(EXAMPLE, label="Text", lines=2, elem_id="text", max_length=booth.limits.chars)
        with gradio.Row():
            chosen = [_side(gradio, booth, "A", models, models[0]), _side(gradio, booth, "B", [NOBODY, *models], (*models, NOBODY)[1])]
        clip = _reference(gradio, booth.only_clones(models[0]))
        chosen_settings = settings(gradio, booth)
        with gradio.Row():
            speak = gradio.Button("Speak", variant="primary", elem_id="speak", scale=5)
            stop = gradio.Button("Stop", elem_id="stop", scale=1)
        with gradio.Row(equal_height=False):
            cards = [gradio.HTML(elem_id="heard-a"), gradio.HTML(elem_id="heard-b")]
        asked = [text, *chosen[0], *chosen[1], *clip, *chosen_settings]
        speaking = gradio.on(
            [speak.click, text.submit], booth.speak, asked, cards, api_name="speak", concurrency_limit=room + 1, show_progress="hidden"
        )
        stop.click(None, cancels=[speaking])
    page.queue(max_size=room + 1)
    return page


def _side(gradio: Any, booth: Booth, name: str, models: Sequence[str], first: str) -> list[Any]:
    """A model and its voice."""

    def change(model: str, voice: str | None) -> Any:
        known = booth.voices(model)
        return gradio.Dropdown(known, value=voice if voice in known else next(iter(known), None))

    with gradio.Group():
        known = booth.voices(first)
        model = gradio.Dropdown(models, value=first, label=f"Model {name}", filterable=False, elem_id=f"model-{name.lower()}")
        voice = gradio.Dropdown(known, value=next(iter(known), None), label=f"Voice {name}", elem_id=f"voice-{name.lower()}")
    model.change(change, [model, voice], voice, show_progress="hidden", api_name=f"voices_{name.lower()}")
    return [model, voice]


def _reference(gradio: Any, needed: bool) -> list[Any]:
    """A clip and what it says; in sight at once if nothing can be spoken without it."""
    with gradio.Accordion("Reference clip: a voice to clone with a base export", open=needed):
        clip = gradio.Audio(label="Record or upload 5 to 15 s", sources=["upload", "microphone"], type="filepath", elem_id="clip")
        said = gradio.Textbox(label="What the clip says", placeholder="left empty, only the sound of the voice is taken")
    return [clip, said]


def settings(gradio: Any, booth: Booth) -> list[Any]:
    """Language, temperature, greedy, seed."""
    languages = sorted({name for voice in booth.speech.models.values() for name in voice.languages})
    with gradio.Accordion("Settings", open=False), gradio.Row():
        language = gradio.Dropdown([TRAINED, *languages], value=TRAINED, label="Language")
        first = next(iter(booth.speech.models.values()))
        temperature = gradio.Slider(0.1, HOTTEST, first.temperature, step=0.05, label="Temperature")
        seed = gradio.Number(0, precision=0, label="Seed")
        greedy = gradio.Checkbox(not first.samples, label="always the most likely code")
    return [language, temperature, greedy, seed]
