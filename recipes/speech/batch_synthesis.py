"""Speech for batches of requests, by a voice in this process or by voices on the workers of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError
from overtone.recipes import ray_generation
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling, VoiceFolder

if TYPE_CHECKING:
    from overtone.data_prep.parallel.ray_pool import RayWorkers

Inspect = Callable[[Path], VoiceFolder]
"""The same function as `SpeechRecipe.inspect`."""
Batch = Sequence[SpeechRequest]
Speak = Callable[[Batch], Sequence[SpeechResult]]


def speak_batches(
    inspect: Inspect, folder: Path, batches: Sequence[Batch], sampling: SpeechSampling, remote: RayWorkers | None
) -> Generator[tuple[int, Sequence[SpeechResult]], None, None]:
    """Yield (index, speech) of each batch: in their order in this process, as they complete on the workers of `remote`.

    Raises `UserError` at the end if batches have failed on a cluster, which names their number and the reasons.
    """
    if remote is None:
        with open_voice(inspect, folder, sampling, 0) as speak:
            yield from ((index, speak(batch)) for index, batch in enumerate(batches))
        return
    from overtone.data_prep.parallel.process_pool import Failure

    failed = list[tuple[int, str]]()
    for index, spoken in ray_generation.run_batches(batches, partial(open_voice, inspect, folder, sampling), remote):
        if isinstance(spoken, Failure):
            failed.append((len(batches[index]), spoken.why))
        else:
            yield index, spoken
    if failed:
        raise UserError(ray_generation.explain_failures([why for _, why in failed], sum(count for count, _ in failed), "text"))


@contextlib.contextmanager
def open_voice(inspect: Inspect, folder: Path, sampling: SpeechSampling, _number: int) -> Iterator[Speak]:
    """Load the voice in this process; yields the function that speaks a batch."""
    with contextlib.closing(inspect(folder).open()) as voice:
        yield partial(voice.speak, sampling=sampling)
