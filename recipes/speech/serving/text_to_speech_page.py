"""The page of `serve`: speaks a text in one voice, or in two side by side, with players and spectrograms."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request as Call
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.pages.report_clips import make_data_uri
from overtone.data_prep.pages.spectrogram_images import draw_spectrogram
from overtone.finetune.errors import UserError
from overtone.finetune.pages import page_assets
from overtone.finetune.pages.jinja_environment import make_environment
from overtone.finetune.pages.request_validation import LARGEST_JSON, Route, parse_body
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
from overtone.recipes.serving.continuous_batch_scheduler import CutOffError, DeadlineError, QueueFullError, ServerClosedError
from overtone.recipes.serving.streamed_response import UNBUFFERED, DeadlineResponse, await_first, find_client
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.marked_audio_encoding import encode_marked_flac
from overtone.recipes.speech.passages import split_request
from overtone.recipes.speech.serving.openai_api import LARGEST_SEED, Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.uploaded_clips import Clips
from overtone.recipes.speech.spoken_text import prepare_request

TEMPLATE, RESULT = Path(__file__).with_suffix(".html"), "speech_result.html"
CLIP = "the reference clip"
"""Choice of the voice of the reference clip, for models that can clone."""
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.1, 1.5
EXAMPLE = "The morning train leaves at seven, and it is never late."


class SideChoice(BaseModel):
    """Model and voice of one side of the page."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    voice: str


class SpeakCall(BaseModel):
    """Body of `POST /speak`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    sides: list[SideChoice] = Field(min_length=1, max_length=2)
    clip: str | None = None
    """An uploaded clip, as `POST /clip` named it."""
    clip_text: str = ""
    language: str | None = None
    """None: the language of the speaker's training data."""
    temperature: float = Field(gt=0, le=HIGHEST_TEMPERATURE)
    greedy: bool
    seed: int = Field(ge=0, le=LARGEST_SEED)


ROUTES = (
    Route("GET", "/"),
    Route("POST", "/speak", largest=LARGEST_JSON, check=lambda body: parse_body(SpeakCall, body).model_dump()),
    page_assets.ROUTE,
)


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


class SideUpdate(NamedTuple):
    """Next content of a side of the page: its speech, or a sentence about the progress."""

    side: int
    result: Player | str


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
        model ("") if there is one."""
        named = [model for model in self.speech.models if not self.only_clones(model)]
        return (named or list(self.speech.models))[0], (*named[:2], "", "")[1]

    async def speak(self, call: SpeakCall, client: str = "") -> AsyncGenerator[SideUpdate, None]:
        """Yield what the sides show while they are spoken one after the other. `client`: the address that takes turns with others.

        Raises `UserError` for a request that cannot be spoken, before a model runs, and the errors of `SpeechQueue.speak`."""
        sampling = SpeechSampling(greedy=call.greedy, temperature=call.temperature, seed=call.seed, max_seconds=self.limits.seconds)
        self._check_texts(call)
        reference = await self._decode_reference(call)
        tasks = [await asyncio.to_thread(self._make_task, call, choice, reference) for choice in call.sides]
        for side, task in enumerate(tasks):
            yield SideUpdate(side, f"{task.title} is waiting in the queue")
            voice, waves = self.speech.models[task.model], list[np.ndarray]()
            notes = [f"not spoken: {task.removed}"] if task.removed else []
            async with aclosing(self.speech.speak(task.model, task.request, sampling, client)) as chunks:
                try:
                    async for wave in chunks:
                        waves.append(wave)
                        yield SideUpdate(side, f"{task.title} is speaking: {sum(map(len, waves)) / voice.rate:.1f} s")
                except CutOffError:
                    notes.append("cut off at the time limit")
            # In a thread, because drawing the spectrogram would block all other requests.
            made = await asyncio.to_thread(make_player, task.title, task.model, np.concatenate(waves), voice.rate, tuple(notes))
            yield SideUpdate(side, made)

    def _check_texts(self, call: SpeakCall) -> None:
        """Raises `UserError` for an empty text, and for one that is too long."""
        if not call.text.strip():
            raise UserError("enter a text to speak")
        for name, content in (("text", call.text), ("transcript of the clip", call.clip_text)):
            if len(content) > self.limits.chars:
                raise UserError(f"the {name} has {len(content)} characters; at most {self.limits.chars} are accepted")

    async def _decode_reference(self, call: SpeakCall) -> Path | None:
        """The decoded clip, if one of the sides clones it. Raises `UserError`."""
        for side in call.sides:
            if side.voice not in self.voices(side.model):
                raise UserError(f"{side.model} has no voice {side.voice!r}; choose one of its voices")
        if not any(side.voice == CLIP for side in call.sides):
            return None
        if call.clip is None:
            raise UserError("record or upload a reference clip first (below the voices), or choose a voice by name")
        return await self.clips.decode(call.clip)

    def _make_task(self, call: SpeakCall, side: SideChoice, reference: Path | None) -> SideRequest:
        """Raises `UserError` for a request that the model cannot speak."""
        if side.voice == CLIP:
            request = SpeechRequest(call.text, None, call.language, reference, call.clip_text.strip() or None)
        else:
            request = SpeechRequest(call.text, side.voice, call.language)
        request, cleaned = prepare_request(request, "the text")
        for passage in split_request(request, self.limits.seconds):
            self.speech.models[side.model].check(passage)
        return SideRequest(f"{side.model} · {side.voice}", side.model, request, cleaned.describe_removed())


def make_player(title: str, model: str, wave: np.ndarray, rate: int, notes: tuple[str, ...] = ()) -> Player:
    """Player, marked as speech of `model`, and spectrogram of a wave [samples] at `rate` Hz."""
    seconds, sound = len(wave) / rate, encode_marked_flac(wave, rate, SyntheticMark(model))
    picture = make_data_uri("image/png", draw_spectrogram(wave)) if len(wave) else ""
    return Player(title, seconds, notes, make_data_uri("audio/flac", sound), picture)


def page_routes(controls: Controls) -> list[Endpoint]:
    """The page, its files, and the request that speaks."""
    result = make_environment(TEMPLATE.parent).get_template(RESULT)

    def encode(update: SideUpdate) -> bytes:
        return json.dumps({"side": update.side, "html": result.render(result=update.result)}).encode() + b"\n"

    async def show(_: Call) -> Response:
        return HTMLResponse(render_page(controls))

    async def speak(call: Call) -> Response:
        body = SpeakCall.model_validate(await call.json())
        deadline = time.monotonic() + controls.speech.deadline_seconds * len(body.sides)
        updates = controls.speak(body, find_client(call))
        first = await await_first(call, anext(updates), "text")

        async def stream() -> AsyncGenerator[bytes, None]:
            try:
                async with aclosing(updates):
                    yield encode(first)
                    async for update in updates:
                        yield encode(update)
            except (UserError, QueueFullError, ServerClosedError, DeadlineError) as error:  # the status has been sent
                yield json.dumps({"error": str(error)}).encode() + b"\n"

        return DeadlineResponse(stream(), "application/x-ndjson", deadline, UNBUFFERED)

    assets = page_assets.serve_assets(TEMPLATE.with_suffix(".js"))
    return [Endpoint("/", show), Endpoint("/speak", speak, methods=["POST"]), assets]


def render_page(controls: Controls) -> str:
    """The page before anything was spoken."""
    models: Sequence[str] = list(controls.speech.models)
    first, second = controls.choose_sides()
    voice = next(iter(controls.speech.models.values()))
    return (
        make_environment(TEMPLATE.parent)
        .get_template(TEMPLATE.name)
        .render(
            limits=controls.limits,
            text=EXAMPLE[: controls.limits.chars],
            models=models,
            first=first,
            second=second,
            voices={model: controls.voices(model) for model in models},
            only_clones=controls.only_clones(first),
            languages=sorted({name for one in controls.speech.models.values() for name in one.languages}),
            temperature=min(max(voice.default_temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE),
            lowest_temperature=LOWEST_TEMPERATURE,
            highest_temperature=HIGHEST_TEMPERATURE,
            greedy=not voice.samples_by_default,
        )
    )
