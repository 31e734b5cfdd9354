"""The page of `serve`: speaks a text in one voice, or in two side by side, with players and spectrograms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from overtone.data_prep.pages.report_clips import make_data_uri
from overtone.data_prep.pages.spectrogram_images import draw_spectrogram
from overtone.finetune.errors import UserError
from overtone.finetune.pages.client_addresses import group_address
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
from overtone.recipes.serving.continuous_batch_scheduler import CutOffError, DeadlineError, QueueFullError, ServerClosedError
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.marked_audio_encoding import encode_marked_flac
from overtone.recipes.speech.passages import split_request
from overtone.recipes.speech.serving.openai_api import LARGEST_SEED, Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.uploaded_clips import Clips
from overtone.recipes.speech.spoken_text import prepare_request

if TYPE_CHECKING:
    from types import ModuleType

    import gradio

STYLE = Path(__file__).with_suffix(".css")
NOBODY = "– none –"
"""Choice of no second voice."""
CLIP = "the reference clip"
"""Choice of the voice of the reference clip, for models that can clone."""
TRAINED = "as trained"
"""Choice of the language of the speaker's training data."""
HIGHEST_TEMPERATURE = 1.5
HEAD = '<h1 class="head">Overtone</h1><p class="head">Listen to a voice, or compare two voices on the same text.</p>'
SPEAK_LATER = "Speak: record or upload a reference clip first"
"""Text of the button while no model can speak without a clip."""
EXAMPLE = "The morning train leaves at seven, and it is never late."


@dataclass(frozen=True)
class SideRequest:
    """The request of one side of the page."""

    title: str
    model: str
    request: SpeechRequest
    removed: str
    """Description of what was dropped from the text, from `SpokenText.describe_removed`."""


@dataclass(frozen=True)
class Player:
    """Generated speech as the browser plays and shows it."""

    title: str
    seconds: float
    notes: tuple[str, ...]
    """Notes for the listener: what was dropped from the text, and whether the speech was cut off."""
    sound: str
    """Data URI, like `picture`, so that speech is never written to the disk, and no other client can request it."""
    picture: str


class Controls:
    """The actions of the page's controls."""

    def __init__(self, speech: SpeechQueue, limits: Limits, clips: Clips) -> None:
        self.speech, self.limits, self.clips = speech, limits, clips

    def voices(self, model: str) -> list[str]:
        """The choices of a voice for a model."""
        voice = self.speech.models.get(model)
        return [] if voice is None else [*voice.speakers, *([CLIP] if voice.can_clone else [])]

    def only_clones(self, model: str) -> bool:
        """Return whether a model has no speaker by name."""
        return self.voices(model) == [CLIP]

    def choose_sides(self) -> tuple[str, str]:
        """The models of both sides at the start: the first two that speak without a clip. The first model if there is none, and no second
        model if there is one."""
        named = [model for model in self.speech.models if not self.only_clones(model)]
        return (named or list(self.speech.models))[0], (*named[:2], NOBODY, NOBODY)[1]

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
        *,
        client: str = "",
    ) -> AsyncGenerator[list[str], None]:
        """HTML of both sides, updated while they are spoken one after the other. `client`: the address that takes turns with others."""
        from gradio import Error  # the page shows it as a message

        try:
            sampling = self._parse_sampling(temperature, greedy, seed)
            chosen = [(model, voice), *([(other_model, other_voice)] if other_model != NOBODY else [])]
            self._check_texts(text, clip_text)
            reference = await self._decode_reference(chosen, clip)
            tasks = [await asyncio.to_thread(self._make_task, text, *side, reference, clip_text, language) for side in chosen]
            async with aclosing(self._run(tasks, sampling, client)) as updates:
                async for sides in updates:
                    yield sides
        except (UserError, QueueFullError, ServerClosedError, DeadlineError) as error:
            raise Error(str(error), print_exception=False) from error

    def _parse_sampling(self, temperature: float, greedy: bool, seed: float) -> SpeechSampling:
        """Raises `UserError` for settings that the page's controls cannot send."""
        if not isinstance(seed, int | float) or not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"the seed {seed!r} is not a number from 0 to {LARGEST_SEED}")
        if not isinstance(temperature, int | float) or not 0 < temperature <= HIGHEST_TEMPERATURE:
            raise UserError(f"the temperature {temperature!r} is not above 0 and at most {HIGHEST_TEMPERATURE:g}")
        return SpeechSampling(greedy=bool(greedy), temperature=temperature, seed=int(seed), max_seconds=self.limits.seconds)

    def _check_texts(self, text: str, clip_text: str) -> None:
        """Raises `UserError` for an empty text, and for one that is too long."""
        if not isinstance(text, str) or not text.strip():
            raise UserError("enter a text to speak")
        for name, content in (("text", text), ("transcript of the clip", clip_text or "")):
            if len(content) > self.limits.chars:
                raise UserError(f"the {name} has {len(content)} characters; at most {self.limits.chars} are accepted")

    async def _decode_reference(self, chosen: Sequence[tuple[str, str | None]], clip: str | None) -> Path | None:
        """The decoded clip, if one of the two sides (model, voice) clones it. Raises `UserError`."""
        for model, voice in chosen:
            if voice not in self.voices(model):
                raise UserError(f"{model} has no voice {voice!r}; choose one of its voices")
        if not any(voice == CLIP for _, voice in chosen):
            return None
        if clip is None:
            raise UserError("record or upload a reference clip first (below the voices), or choose a voice by name")
        return await self.clips.decode(clip)

    def _make_task(self, text: str, model: str, voice: str | None, reference: Path | None, clip_text: str, language: str) -> SideRequest:
        """Raises `UserError` for a request that the model cannot speak."""
        spoken_language = None if language == TRAINED else language
        if voice == CLIP:
            request = SpeechRequest(text, None, spoken_language, reference, (clip_text or "").strip() or None)
        else:
            request = SpeechRequest(text, voice, spoken_language)
        request, cleaned = prepare_request(request, "the text")
        for passage in split_request(request, self.limits.seconds):
            self.speech.models[model].check(passage)
        return SideRequest(f"{model} · {voice}", model, request, cleaned.describe_removed())

    async def _run(self, tasks: Sequence[SideRequest], sampling: SpeechSampling, client: str) -> AsyncGenerator[list[str], None]:
        done: list[Player] = []
        for task in tasks:
            yield render_sides(done, f"{task.title} is waiting in the queue")
            voice, waves = self.speech.models[task.model], list[np.ndarray]()
            notes = [f"not spoken: {task.removed}"] if task.removed else []
            async with aclosing(self.speech.speak(task.model, task.request, sampling, client)) as chunks:
                try:
                    async for wave in chunks:
                        waves.append(wave)
                        yield render_sides(done, f"{task.title} is speaking: {sum(map(len, waves)) / voice.rate:.1f} s")
                except CutOffError:
                    notes.append("cut off at the time limit")
            # In a thread, because drawing the spectrogram would block all other requests.
            done.append(await asyncio.to_thread(make_player, task.title, task.model, np.concatenate(waves), voice.rate, tuple(notes)))
        yield render_sides(done)


def make_player(title: str, model: str, wave: np.ndarray, rate: int, notes: tuple[str, ...] = ()) -> Player:
    """Player, marked as speech of `model`, and spectrogram of a wave [samples] at `rate` Hz."""
    seconds, sound = len(wave) / rate, encode_marked_flac(wave, rate, SyntheticMark(model))
    picture = make_data_uri("image/png", draw_spectrogram(wave)) if len(wave) else ""
    return Player(title, seconds, notes, make_data_uri("audio/flac", sound), picture)


def render_sides(done: Sequence[Player], working: str = "") -> list[str]:
    """HTML of both sides; `working` is shown on the first side that is not done."""
    longest = max((one.seconds for one in done), default=0.0)
    cards = [render_card(one, longest) for one in done]
    return [*cards, *([f'<p class="working">{escape(working)}</p>'] if working else []), "", ""][:2]


def render_card(one: Player, longest: float) -> str:
    """HTML of player and spectrogram, whose width is its duration relative to `longest`. A line over the spectrogram shows the position."""
    width = 100 * one.seconds / longest if longest else 100
    notes = "".join(f" · {escape(note)}" for note in one.notes)
    follow = "this.closest('.result').style.setProperty('--at', this.currentTime / this.duration)"
    return (
        f'<figure class="result"><figcaption><b>{escape(one.title)}</b><span>{one.seconds:.2f} s{notes}</span></figcaption>'
        f'<div class="spectrogram" style="width: {width:.1f}%"><img src="{one.picture}" alt="Spectrogram, 0 to 12 kHz"></div>'
        f'<audio controls preload="auto" src="{one.sound}" ontimeupdate="{follow}"></audio></figure>'
    )


def build_page(controls: Controls) -> gradio.Blocks:
    """The page without its server."""
    import gradio

    models = list(controls.speech.models)
    first, second = controls.choose_sides()
    waiting = controls.only_clones(first)
    most = controls.speech.room + controls.speech.slots
    with gradio.Blocks(title="Overtone", analytics_enabled=False) as page:
        gradio.HTML(HEAD)
        text = gradio.Textbox(EXAMPLE[: controls.limits.chars], label="Text", lines=2, elem_id="text", max_length=controls.limits.chars)
        with gradio.Row():
            chosen = [
                _side_inputs(gradio, controls, "A", models, first),
                _side_inputs(gradio, controls, "B", [NOBODY, *models], second),
            ]
        clip = _reference_inputs(gradio, waiting)
        chosen_settings = setting_inputs(gradio, controls)
        with gradio.Row():
            speak = gradio.Button(SPEAK_LATER if waiting else "Speak", variant="primary", elem_id="speak", scale=5, interactive=not waiting)
            stop = gradio.Button("Stop", elem_id="stop", scale=1)
        with gradio.Row(equal_height=False):
            cards = [gradio.HTML(elem_id="result-a"), gradio.HTML(elem_id="result-b")]
        inputs = [text, *chosen[0], *chosen[1], *clip, *chosen_settings]
        run = speak_for_caller(gradio, controls)
        speaking = gradio.on(
            [speak.click, text.submit], run, inputs, cards, api_name="speak", concurrency_limit=most, show_progress="hidden"
        )
        stop.click(None, cancels=[speaking])
        if waiting:
            clip[0].change(_enable_speaking, clip[:1], speak, show_progress="hidden", api_name="enable_speaking")
    page.queue(max_size=most)
    return page


def speak_for_caller(gradio: ModuleType, controls: Controls) -> Callable[..., AsyncGenerator[list[str], None]]:
    """`Controls.speak` for the address that sent the request, which gradio passes to a parameter with that annotation."""

    async def speak(caller: Any, *values: Any) -> AsyncGenerator[list[str], None]:
        client = "" if caller.client is None else group_address(caller.client.host)
        async with aclosing(controls.speak(*values, client=client)) as updates:
            async for sides in updates:
                yield sides

    speak.__annotations__["caller"] = gradio.Request
    return speak


def _enable_speaking(clip: str | None) -> Any:
    """The button that speaks: enabled once there is a clip to clone."""
    import gradio

    return gradio.Button(SPEAK_LATER if clip is None else "Speak", interactive=clip is not None)


def _side_inputs(gradio: ModuleType, controls: Controls, name: str, models: Sequence[str], first: str) -> list[Any]:
    """The dropdowns of a model and its voice."""

    def change(model: str, voice: str | None) -> Any:
        known = controls.voices(model)
        return gradio.Dropdown(known, value=voice if voice in known else next(iter(known), None))

    with gradio.Group():
        known = controls.voices(first)
        model = gradio.Dropdown(models, value=first, label=f"Model {name}", filterable=False, elem_id=f"model-{name.lower()}")
        voice = gradio.Dropdown(known, value=next(iter(known), None), label=f"Voice {name}", elem_id=f"voice-{name.lower()}")
    model.change(change, [model, voice], voice, show_progress="hidden", api_name=f"voices_{name.lower()}")
    return [model, voice]


def _reference_inputs(gradio: ModuleType, needed: bool) -> list[Any]:
    """The inputs of a clip and its transcript; expanded if the first model can only clone."""
    with gradio.Accordion("Reference clip: a voice to clone with a base model", open=needed):
        clip = gradio.Audio(label="Record or upload 5 to 15 s", sources=["upload", "microphone"], type="filepath", elem_id="clip")
        transcript = gradio.Textbox(
            label="Transcript of the clip", placeholder="optional; without it, only the voice is cloned, not the style"
        )
    return [clip, transcript]


def setting_inputs(gradio: ModuleType, controls: Controls) -> list[Any]:
    """The inputs of language, temperature, greedy decoding and seed."""
    languages = sorted({name for voice in controls.speech.models.values() for name in voice.languages})
    with gradio.Accordion("Settings", open=False), gradio.Row():
        language = gradio.Dropdown([TRAINED, *languages], value=TRAINED, label="Language")
        first = next(iter(controls.speech.models.values()))
        temperature = gradio.Slider(
            0.1, HIGHEST_TEMPERATURE, min(max(first.default_temperature, 0.1), HIGHEST_TEMPERATURE), step=0.05, label="Temperature"
        )
        seed = gradio.Number(0, precision=0, label="Seed")
        greedy = gradio.Checkbox(not first.samples_by_default, label="Greedy: always take the most likely token")
    return [language, temperature, greedy, seed]
