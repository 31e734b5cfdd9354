"""A running batch that speaks long texts: when a passage of a request ends, its next passage starts in the same slot."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from overtone.recipes.serving.running_batch_interface import LENGTH, RunningBatch, StepProgress
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling, SpokenRequest
from overtone.recipes.speech.passages import PassageJoiner, split_request

SpeechLane = RunningBatch[SpokenRequest, np.ndarray]


@dataclass
class _LongSpeech:
    """A request and the passages that are not spoken yet."""

    place: int
    """Its slot in the batch of passages, which changes from passage to passage."""
    waiting: deque[SpokenRequest]
    joiner: PassageJoiner


class PassageBatch:
    """Owns the requests in progress. Implements `RunningBatch` on top of the batch of a voice, which speaks one passage at a time."""

    def __init__(self, passages: SpeechLane, rate: int) -> None:
        """`passages`: the running batch of the voice. `rate`: sample rate of its speech, in Hz."""
        self._passages, self._rate = passages, rate
        self._speeches: dict[int, _LongSpeech] = {}

    @property
    def slots(self) -> int:
        """The maximum number of requests at once."""
        return self._passages.slots

    def join(self, spoken: SpokenRequest) -> int:
        """Implements `RunningBatch`."""
        waiting = deque(list_passages(spoken.request, spoken.sampling))
        joiner = PassageJoiner(self._rate, len(waiting))
        place = self._passages.join(waiting.popleft())
        slot = next(slot for slot in range(self.slots) if slot not in self._speeches)
        self._speeches[slot] = _LongSpeech(place, waiting, joiner)
        return slot

    def step(self) -> dict[int, StepProgress[np.ndarray]]:
        """Implements `RunningBatch`. A passage that reaches the time limit ends its request."""
        found = self._passages.step()
        slots = {speech.place: slot for slot, speech in self._speeches.items()}
        return {slots[place]: self._advance(slots[place], progress) for place, progress in found.items()}

    def leave(self, slot: int) -> None:
        """Implements `RunningBatch`."""
        if (speech := self._speeches.pop(slot, None)) is not None:
            self._passages.leave(speech.place)

    def _advance(self, slot: int, progress: StepProgress[np.ndarray]) -> StepProgress[np.ndarray]:
        speech = self._speeches[slot]
        waves = [] if progress.piece is None else [speech.joiner.feed(progress.piece)]
        over, failure = progress.over, progress.failure
        if over is not None:
            waves.append(speech.joiner.end_passage())
        if over is not None and over != LENGTH and speech.waiting:
            over = None
            try:
                speech.place = self._passages.join(speech.waiting.popleft())
            except Exception as error:  # of this request alone, such as memory for its prompt: the others continue
                failure = error
        if over is not None or failure is not None:
            del self._speeches[slot]
        waves = [wave for wave in waves if len(wave)]
        return StepProgress(np.concatenate(waves) if waves else None, over, failure)


def list_passages(request: SpeechRequest, sampling: SpeechSampling) -> list[SpokenRequest]:
    """The passages of a request, each with its settings."""
    return [SpokenRequest(passage, sampling) for passage in split_request(request, sampling.max_seconds)]
