"""Tests of `overtone.recipes.speech.serving.passage_batch` with a batch that speaks a chunk for each word."""

from __future__ import annotations

import numpy as np

from overtone.recipes.serving.running_batch_interface import LENGTH, STOP, StepProgress
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling, SpokenRequest
from overtone.recipes.speech.passages import join_results, split_text
from overtone.recipes.speech.serving.passage_batch import PassageBatch

RATE = 1000
TEXT = "The first sentence has some words. " * 18


class WordBatch:
    """A running batch of two slots: each word is a chunk whose level is its length. Some texts never end, others cannot join."""

    slots = 2

    def __init__(self) -> None:
        self.running: dict[int, list[str]] = {}
        self.joined: list[str] = []

    def join(self, spoken: SpokenRequest) -> int:
        self.joined.append(spoken.request.text)
        if "unjoinable" in spoken.request.text:
            raise MemoryError("no room for the prompt")
        slot = next(slot for slot in range(self.slots) if slot not in self.running)
        self.running[slot] = spoken.request.text.split()
        return slot

    def step(self) -> dict[int, StepProgress[np.ndarray]]:
        found = {}
        for slot, words in list(self.running.items()):
            word = words.pop(0)
            over = LENGTH if word == "endless" else STOP if not words else None
            found[slot] = StepProgress(speak_word(word), over)
            if over:
                del self.running[slot]
        return found

    def leave(self, slot: int) -> None:
        self.running.pop(slot, None)


def speak_word(word: str) -> np.ndarray:
    return np.full(50, len(word) / 20, np.float32)


def speak(text: str) -> np.ndarray:
    waves = [np.concatenate([speak_word(word) for word in passage.split()]) for passage in split_text(text, 60)]
    return join_results([SpeechResult(wave, RATE, True) for wave in waves]).wave


def run(batch: PassageBatch, texts: list[str]) -> dict[int, tuple[np.ndarray, StepProgress[np.ndarray]]]:
    waiting, waves, ends, slots = list(texts), dict[int, list[np.ndarray]](), {}, dict[int, int]()
    while waiting or slots:
        if waiting and len(slots) < batch.slots:
            number = len(texts) - len(waiting)
            slots[batch.join(SpokenRequest(SpeechRequest(waiting.pop(0), None), SpeechSampling()))] = number
        for slot, progress in batch.step().items():
            if progress.piece is not None:
                waves.setdefault(slots[slot], []).append(progress.piece)
            if progress.over or progress.failure:
                ends[slots.pop(slot)] = progress
    return {number: (np.concatenate(waves[number]), end) for number, end in ends.items()}


def test_requests_of_several_passages_share_the_batch() -> None:
    texts = [TEXT, "Short.", TEXT.replace("first", "second"), "And the last one.", TEXT]
    found = run(PassageBatch(WordBatch(), RATE), texts)
    assert len(split_text(TEXT, 60)) > 2
    for number, text in enumerate(texts):
        wave, end = found[number]
        assert end.over == STOP and np.array_equal(wave, speak(text))


def test_a_passage_at_the_time_limit_ends_the_request() -> None:
    inner = WordBatch()
    text = TEXT + "Then it is endless here. " + TEXT
    found = run(PassageBatch(inner, RATE), [text])
    assert found[0][1].over == LENGTH and len(inner.joined) < len(split_text(text, 60)) and not inner.running


def test_a_passage_that_cannot_join_fails_its_request_alone() -> None:
    found = run(PassageBatch(WordBatch(), RATE), [TEXT + "This is unjoinable here. " + TEXT, TEXT])
    assert isinstance(found[0][1].failure, MemoryError) and found[0][1].over is None
    assert found[1][1].over == STOP and np.array_equal(found[1][0], speak(TEXT))


def test_a_request_that_leaves_frees_its_place() -> None:
    inner = WordBatch()
    batch = PassageBatch(inner, RATE)
    slot = batch.join(SpokenRequest(SpeechRequest(TEXT, None), SpeechSampling()))
    batch.step()
    batch.leave(slot)
    batch.leave(slot)
    assert not inner.running and batch.step() == {}
