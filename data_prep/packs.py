"""Packs: what Whisper hears at once, whichever engine runs it.

A pack is a row of neighbouring windows without the long pauses between them, because Whisper takes 30 s of sound whatever is in it. No text
is carried from one pack to the next, so an invented sentence cannot spread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio, Samples, to_rate
from data_prep.segment import Unit
from data_prep.vad import Region

BATCH = 16
"""Packs at a time through the decoder, which then costs a third of what it costs one by one."""
PACK_SECONDS = 29.0
PAUSE_KEPT_SECONDS = 0.4
"""Of a pause that is left out, on either side: without it, the words around it would run together."""
TOKENS_PER_SECOND, TOKENS_AT_LEAST = 10, 10
"""Twice what fast English needs."""
LOOKS_UNSURE, LOOKS_EMPTY = -1.0, 0.6
"""Mean log-probability and probability of no speech; limits of openai-whisper."""
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word after it, and to the word before it."""

Pack = tuple[Region, ...]
"""Stretches of a recording that Whisper hears as one sound, one right after the other."""


def settings() -> dict[str, Any]:
    """All that the packs, their batches and their limits depend on: part of the cache key."""
    return {"batch": BATCH, "pack": (PACK_SECONDS, PAUSE_KEPT_SECONDS), "tokens": (TOKENS_PER_SECOND, TOKENS_AT_LEAST)}


def pack(windows: list[Region], longest: float | None = None) -> list[Pack]:
    """Neighbours together, with a part of the pauses between them, as long as they last 29 s, or `longest`, at most."""
    seconds = PACK_SECONDS if longest is None else longest
    packs: list[Pack] = []
    for window in windows:
        longer = _joined(packs[-1], window) if packs else ()
        if longer and seconds_of(longer) <= seconds:
            packs[-1] = longer
        else:
            packs.append((window,))
    return packs


def seconds_of(pack: Pack) -> float:
    """Of sound."""
    return sum(stretch.seconds for stretch in pack)


def token_limit(seconds: float, most: int) -> int:
    """How many tokens a pack may have: a model that loops stops there. `most`: what the engine can."""
    return min(most, TOKENS_AT_LEAST + int(TOKENS_PER_SECOND * seconds))


def silent(no_speech_prob: float, avg_logprob: float) -> bool:
    """Whether Whisper hears nothing: it expects no speech, and is unsure of the words that it gives nevertheless."""
    return no_speech_prob > LOOKS_EMPTY and avg_logprob < LOOKS_UNSURE


def sound(audio: Audio, pack: Pack) -> Samples:
    """Samples at 16 kHz. Raises ValueError if `audio` has another rate."""
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"Whisper hears {SPEECH_RATE} Hz, not {audio.rate}")
    ends = [[to_rate(position, MASTER_RATE, SPEECH_RATE) for position in stretch] for stretch in pack]
    return np.concatenate([audio.samples[start:stop] for start, stop in ends])


def place(pack: Pack, start: float, end: float) -> Region:
    """Where in the recording a word lies that is heard from `start` to `end` seconds of the pack: in the stretch that holds its middle."""
    first, last = round(float(start) * MASTER_RATE), round(float(end) * MASTER_RATE)
    offset = 0
    for stretch in pack:
        length = stretch.stop - stretch.start
        if (first + last) // 2 <= offset + length or stretch is pack[-1]:
            break
        offset += length
    return Region(*(min(max(stretch.start + position - offset, stretch.start), stretch.stop) for position in (first, last)))


def hear(windows: list[Region], listen: Callable[[list[Pack]], list[Unit]], longest: float | None = None) -> list[Unit]:
    """The words of all windows in order. `listen`: what one batch of packs says. `longest`: seconds of a pack, for a model that knows no
    longer ones.

    A pack that cannot be heard gives a unit without a text, which says why, for each of its stretches; the others go on.
    """
    units = [unit for batch in _batches(pack(windows, longest)) for unit in _in_halves(batch, listen)]
    return sorted(units, key=lambda unit: (unit.start, unit.stop))


def _joined(pack: Pack, window: Region) -> Pack:
    last, kept = pack[-1], int(PAUSE_KEPT_SECONDS * MASTER_RATE)
    middle = Region(last.stop, window.start).middle
    return (*pack[:-1], Region(last.start, min(last.stop + kept, middle)), Region(max(window.start - kept, middle), window.stop))


def _batches(packs: list[Pack]) -> list[list[Pack]]:
    """Of like length: the longest of a batch decides how long it takes. The longest first: what lacks memory fails early."""
    ordered = sorted(packs, key=lambda pack: (-seconds_of(pack), pack))
    return [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]


def _in_halves(batch: list[Pack], listen: Callable[[list[Pack]], list[Unit]]) -> list[Unit]:
    """A batch that fails is halved: what is left then fits into memory, or one bad pack takes no other with it."""
    try:
        return listen(batch)
    except Exception as error:  # engines fail in many ways, and hours of other sound are at stake
        if len(batch) == 1:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return [Unit(text="", start=stretch.start, stop=stretch.stop, error=reason) for stretch in batch[0]]
    middle = len(batch) // 2  # outside of the handler: there, the error still holds the tensors of the failed try
    return _in_halves(batch[:middle], listen) + _in_halves(batch[middle:], listen)
