"""Requests that join and leave a running batch at random, and the codes of each of them alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from overtone.recipes.speech.decoding.continuous_batching import FrameBatch
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from tests.recipes.speech.decoding.recorded_graphs import RecordedGraph, imitate_graphs

Alone = dict[int, tuple[list[list[int]], bool]]
"""Number of a request → its codes [T, codebooks], and whether it reached its end."""
SLOTS = 4
Started = tuple[FrameBatch[Any, Any, Any], Callable[[SpeechRequest, SpeechSampling], int]]
"""A batch, and the function that starts a request in it."""


def make_requests(voice: FrameVoice[Any, Any, Any], texts: Sequence[str], frames: int) -> list[tuple[SpeechRequest, SpeechSampling]]:
    """Each text greedily, with the model's own settings, and with a temperature; different speakers, seeds and limits."""
    made = []
    for number, text in enumerate(texts):
        speaker = voice.speakers[number % len(voice.speakers)]
        for kind, chosen in enumerate(({"greedy": True}, {}, {"temperature": 0.7 + number / 10})):
            limit = 1 + (5 * number + 3 * kind) % frames
            sampling = SpeechSampling(seed=3 * number + kind, max_seconds=limit / voice.frame_rate, **chosen)
            made.append((SpeechRequest(text, speaker), sampling))
    return made


def speak_alone(voice: FrameVoice[Any, Any, Any], requests: Sequence[tuple[SpeechRequest, SpeechSampling]]) -> Alone:
    """Each in a batch of one."""
    spoken = [voice.speak([request], sampling)[0] for request, sampling in requests]
    return {number: (one.codes.tolist(), one.ended) for number, one in enumerate(spoken)}


@dataclass
class Outcome:
    """What the schedules came to."""

    finished: int = 0
    left: int = 0
    together: set[int] = field(default_factory=set)
    """Numbers of requests that were in the batch at once."""


def run_schedules(started: Started, requests: Sequence[tuple[SpeechRequest, SpeechSampling]], alone: Alone, schedules: int) -> Outcome:
    """Run them in one batch, one after another, and assert the codes of every request that was not stopped."""
    batch, join = started
    outcome = Outcome()
    for seed in range(schedules):
        chance = random.Random(seed)
        waiting = chance.sample(range(len(requests)), len(requests) // 2)
        running: dict[int, tuple[int, list[Any]]] = {}
        while waiting or running:
            while waiting and len(running) < SLOTS and chance.random() < 0.6:
                number = waiting.pop()
                running[join(*requests[number])] = (number, [])
            outcome.together.add(len(running))
            _step(batch, running, alone, outcome)
            if running and chance.random() < 0.1:
                row = chance.choice(sorted(running))
                batch.leave(row)
                outcome.left += running.pop(row) is not None
    return outcome


def start_batch(voice: FrameVoice[Any, Any, Any]) -> Started:
    """A batch of `SLOTS` requests."""
    batch = voice.open_frames(SLOTS)
    return batch, partial(voice.join, batch)


def check_schedules(voice: FrameVoice[Any, Any, Any], texts: Sequence[str], frames: int, schedules: int) -> Alone:
    """In random schedules each request has its own codes, and enough of them finish, leave early and run beside others; returns the codes
    of each alone."""
    requests = make_requests(voice, texts, frames)
    alone = speak_alone(voice, requests)
    outcome = run_schedules(start_batch(voice), requests, alone, schedules)
    assert outcome.finished >= 4 * schedules and outcome.left >= schedules // 4 and {1, 2, 3, 4} <= outcome.together
    return alone


def check_graphs(voice: FrameVoice[Any, Any, Any], texts: Sequence[str], frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With captured frames each request has its own codes, alone and in a batch. The frames of requests without settings are captured
    before the first request, those of other plans once; joins and leaves capture nothing again."""
    requests = make_requests(voice, texts, frames)
    alone = speak_alone(voice, requests)
    imitate_graphs(monkeypatch)
    assert speak_alone(voice, requests[:3]) == {number: alone[number] for number in range(3)}
    batch, join = start_batch(voice)
    monkeypatch.setattr(RecordedGraph, "captured", 0)
    batch.capture_frames(frames, voice.make_sampler(SpeechSampling()))
    at_start, windows = RecordedGraph.captured, len(batch.cache.list_windows())
    assert at_start == windows
    run_schedules((batch, join), requests[1::3], {number // 3: one for number, one in alone.items() if number % 3 == 1}, 1)
    assert RecordedGraph.captured == at_start and RecordedGraph.replayed > 0
    run_schedules((batch, join), requests, alone, 1)
    for _ in range(SLOTS):  # so that no row samples
        join(*requests[0])
    while batch.step():
        pass
    captured = RecordedGraph.captured
    assert captured <= at_start + windows
    run_schedules((batch, join), requests, alone, 1)
    assert RecordedGraph.captured == captured


def _step(batch: FrameBatch[Any, Any, Any], running: dict[int, tuple[int, list[Any]]], alone: Alone, outcome: Outcome) -> None:
    found = batch.step()
    assert found.keys() == running.keys()
    for row, frame in found.items():
        number, codes = running[row]
        if frame.codes is not None:
            codes.append(frame.codes)
        if frame.over:
            expected, ended = alone[number]
            assert (torch.stack(codes).tolist() if codes else [], frame.ended) == (expected, ended), f"request {number} in row {row}"
            del running[row]
            outcome.finished += 1
