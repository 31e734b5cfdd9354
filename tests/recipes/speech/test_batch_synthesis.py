"""Batches of requests, spoken by this process or by workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.parallel.process_pool import Failure
from overtone.data_prep.parallel.ray_pool import RayWorkers
from overtone.finetune.errors import UserError
from overtone.recipes import ray_generation
from overtone.recipes.speech.batch_synthesis import speak_batches
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from tests.recipes.voice_clone.tones import ToneFolder, tone_folder

BATCHES = [[SpeechRequest("One.", "low"), SpeechRequest("Two.", "high")], [SpeechRequest("Three.", "low")]]


def test_this_process_speaks_in_order(tmp_path: Path) -> None:
    folder = tone_folder(tmp_path / "tones")
    found = list(speak_batches(ToneFolder.inspect, folder, BATCHES, SpeechSampling(), None))
    assert [index for index, _ in found] == [0, 1] and [len(results) for _, results in found] == [2, 1]


def test_a_failed_batch_is_reported_when_the_others_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_batches(batches: Sequence[Any], make: Any, remote: RayWorkers) -> Iterator[tuple[int, Any]]:
        yield 0, Failure("its workers died, 3 times, on here")
        with make(0) as speak:
            yield 1, speak(batches[1])

    monkeypatch.setattr(ray_generation, "run_batches", run_batches)
    folder = tone_folder(tmp_path / "tones")
    spoken = speak_batches(ToneFolder.inspect, folder, BATCHES, SpeechSampling(), RayWorkers(1, 0.0, tmp_path))
    index, (result,) = next(spoken)
    assert index == 1 and result.ended
    with pytest.raises(UserError, match="^2 texts could not be generated: its workers died, 3 times, on here"):
        next(spoken)
