"""Tests of `overtone.recipes.speech.serving.request_queue`. The voice generates each chunk when the test releases it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
import pytest

from overtone.recipes.serving.continuous_batch_scheduler import QueueFullError, ServerClosedError
from overtone.recipes.serving.prometheus_metrics import OUTCOMES
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.speech.serving.request_queue import SpeechQueue

CHUNK = np.zeros(10, np.float32)


class HeldVoice:
    """Generates a chunk for each release of `go`, up to five; fails on the text `bad`."""

    rate = 20

    def __init__(self) -> None:
        self.go, self.spoken, self.most, self._now = threading.Semaphore(0), [], 0, 0
        self.begun = threading.Semaphore(0)
        """Released at the beginning of each chunk."""

    def stream(self, request: SpeechRequest, sampling: SpeechSampling) -> Generator[np.ndarray, None, SpeechResult]:
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            for _ in range(5):
                self.begun.release()
                self.go.acquire()
                if request.text == "bad":
                    raise ValueError("bad text")
                self.spoken.append(request.text)
                yield CHUNK
            return SpeechResult(np.tile(CHUNK, 5), self.rate, request.text != "endless")
        finally:
            self._now -= 1

    def close(self) -> None:
        self.spoken.append("closed")


def speaking(speech: SpeechQueue, text: str) -> Any:
    return speech.speak("m", SpeechRequest(text, None), SpeechSampling())


async def all_of(speech: SpeechQueue, text: str) -> int:
    return len([wave async for wave in speaking(speech, text)])


async def second_chunk_of(voice: HeldVoice) -> None:
    """Wait until the second chunk is being generated."""
    for _ in range(2):
        assert await asyncio.to_thread(voice.begun.acquire, timeout=100)


def read_outcomes(speech: SpeechQueue) -> dict[str, float]:
    read = partial(speech.metrics.registry.get_sample_value, "overtone_speech_requests_total")
    return {outcome: count for outcome in OUTCOMES if (count := read({"model": "m", "outcome": outcome}))}


def run(scenario: Any, room: int = 2) -> HeldVoice:
    voice = HeldVoice()

    async def run_scenario() -> None:
        speech = SpeechQueue({"m": voice}, room)  # type: ignore[dict-item]
        try:
            await asyncio.wait_for(scenario(speech, voice), 30)
            assert speech.pending == 0
        finally:
            for _ in range(99):
                voice.go.release()
            await asyncio.to_thread(speech.close)

    asyncio.run(run_scenario())
    return voice


def test_requests_are_served_one_after_another_in_their_order() -> None:
    async def scenario(speech: SpeechQueue, voice: HeldVoice) -> None:
        waiting = [asyncio.create_task(all_of(speech, text)) for text in "abc"]
        for _ in range(15):
            voice.go.release()
        assert await asyncio.gather(*waiting) == [5, 5, 5]

    voice = run(scenario)
    assert voice.spoken == [*"aaaaabbbbbccccc", "closed"] and voice.most == 1


def test_a_full_queue_refuses_the_next_request_and_serves_the_others() -> None:
    async def scenario(speech: SpeechQueue, voice: HeldVoice) -> None:
        waiting = [asyncio.create_task(all_of(speech, text)) for text in "abc"]
        await asyncio.sleep(0)  # each task runs to its first wait
        assert speech.pending == 3
        with pytest.raises(QueueFullError, match=r"Queue full \(3 pending\)"):
            await all_of(speech, "d")
        assert read_outcomes(speech) == {"queue_full": 1}
        for _ in range(15):
            voice.go.release()
        assert await asyncio.gather(*waiting) == [5, 5, 5]
        for _ in range(5):
            voice.go.release()
        assert await all_of(speech, "e") == 5

    assert "d" not in run(scenario).spoken


def test_generation_stops_when_the_client_disconnects() -> None:
    async def scenario(speech: SpeechQueue, voice: HeldVoice) -> None:
        async with aclosing(speaking(speech, "a")) as chunks:
            voice.go.release()
            await anext(chunks)
            await second_chunk_of(voice)  # its second chunk is being generated when the client disconnects
        waiting = [asyncio.create_task(all_of(speech, text)) for text in "bc"]
        await asyncio.sleep(0)  # each task runs to its first wait
        assert speech.pending == 2
        waiting[0].cancel()  # while it waits in the queue
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert speech.pending == 1 and read_outcomes(speech) == {"cancelled": 2}
        for _ in range(7):
            voice.go.release()
        assert await waiting[1] == 5

    assert run(scenario).spoken == [*"aaccccc", "closed"]


def test_an_error_fails_only_its_own_request() -> None:
    async def scenario(speech: SpeechQueue, voice: HeldVoice) -> None:
        for _ in range(6):
            voice.go.release()
        with pytest.raises(ValueError, match="bad text"):
            await all_of(speech, "bad")
        assert await all_of(speech, "good") == 5
        assert read_outcomes(speech) == {"completed": 1, "failed": 1}
        read = partial(speech.metrics.registry.get_sample_value, labels={"model": "m"})
        assert read("overtone_speech_audio_seconds_total") == 5 * len(CHUNK) / HeldVoice.rate
        assert read("overtone_speech_time_to_first_audio_seconds_count") == 1

    run(scenario)


def test_a_draining_queue_refuses_new_requests_and_serves_the_others() -> None:
    async def scenario(speech: SpeechQueue, voice: HeldVoice) -> None:
        waiting = [asyncio.create_task(all_of(speech, text)) for text in "ab"]
        await asyncio.sleep(0)  # each task runs to its first wait
        speech.refuse_new()
        with pytest.raises(ServerClosedError, match="shutting down"):
            await all_of(speech, "c")
        for _ in range(10):
            voice.go.release()
        assert await asyncio.gather(*waiting) == [5, 5]
        assert read_outcomes(speech) == {"completed": 2, "shutting_down": 1}

    assert run(scenario).spoken == [*"aaaaabbbbb", "closed"]


def test_closing_the_server_fails_the_current_request() -> None:
    async def scenario(speech: SpeechQueue, voice: HeldVoice) -> None:
        chunks = speaking(speech, "a")
        voice.go.release()
        await anext(chunks)
        await second_chunk_of(voice)  # the thread is generating the second chunk
        closing = asyncio.create_task(asyncio.to_thread(speech.close))
        while not speech._scheduler._closing:
            await asyncio.sleep(0)
        voice.go.release()
        await anext(chunks)
        with pytest.raises(ServerClosedError):
            await anext(chunks)
        await closing

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/speak"])
def test_draining_waits_for_the_responses_of_the_api_and_of_the_page(path: str) -> None:
    speech, seen = SpeechQueue({}, room=1), list[int]()

    async def respond(*_: Any) -> None:
        seen.append(speech.metrics.open_calls)

    counted: Any = speech.metrics.count_responses(respond)
    asyncio.run(counted({"type": "http", "method": "POST", "path": path}, None, None))
    speech.close()
    assert seen == [1] and speech.metrics.open_calls == 0
