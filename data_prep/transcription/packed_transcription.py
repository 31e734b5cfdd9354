"""Batching of speech for Whisper, for both engines: windows are packed into inputs of up to 30 s and transcribed in batches.

A pack joins neighbouring windows without the long pauses between them, because Whisper always processes 30 s. No text is carried over from
one pack to the next, so a hallucinated sentence cannot spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples, convert_position
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region

BATCH = 16
"""Packs per decoder batch; decoding then takes a third of the time of single packs."""
PACK_SECONDS = 29.0
PAUSE_KEPT_SECONDS = 0.4
"""Pause kept on each side of a removed one, so that the words around it do not run together."""
TOKENS_PER_SECOND, TOKENS_AT_LEAST = 10, 10
"""Token limit, which is twice what fast English needs."""
LOOKS_UNSURE, LOOKS_EMPTY = -1.0, 0.6
"""Thresholds of openai-whisper on the mean log-probability and the no-speech probability."""
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that is attached to the following word, and to the preceding word."""

Pack = tuple[Region, ...]
"""Regions of a recording that Whisper gets as one concatenated input."""


WhisperSettings = TypedDict(
    "WhisperSettings",
    {
        "form": int,
        "whisper": str,
        "faster-whisper": str,
        "ctranslate2": str,
        "weights": str,
        "language": str | None,
        "temperatures": tuple[float, ...],
        "most tokens": int,
        "beams": int,
        "batch": int,
        "pack": tuple[float, float],
        "tokens": tuple[int, int],
        "name": str,
        "scope": str,
        "least_sure": float,
        "longest_window": float,
    },
    total=False,
)
"""Everything that a text depends on besides the audio: part of the cache key. `describe_settings` of an engine returns it; the last four
are of the demo Whisper (`demo_whisper.DemoWhisperDescription`)."""


def describe_settings() -> WhisperSettings:
    """Return the parameters of packs, batches and token limits: part of the cache key."""
    return {"batch": BATCH, "pack": (PACK_SECONDS, PAUSE_KEPT_SECONDS), "tokens": (TOKENS_PER_SECOND, TOKENS_AT_LEAST)}


def pack_windows(windows: list[Region], longest: float | None = None) -> list[Pack]:
    """Join neighbouring windows, with shortened pauses, up to 29 s or `longest` seconds per pack."""
    seconds = PACK_SECONDS if longest is None else longest
    packs: list[Pack] = []
    for window in windows:
        longer = _join_window(packs[-1], window) if packs else ()
        if longer and sum_seconds(longer) <= seconds:
            packs[-1] = longer
        else:
            packs.append((window,))
    return packs


def sum_seconds(pack: Pack) -> float:
    """Return the duration of a pack."""
    return sum(stretch.seconds for stretch in pack)


def compute_token_limit(seconds: float, most: int) -> int:
    """Return the maximum number of tokens of a pack, which stops a looping model. `most`: limit of the engine."""
    return min(most, TOKENS_AT_LEAST + int(TOKENS_PER_SECOND * seconds))


def is_silence(no_speech_prob: float, avg_logprob: float) -> bool:
    """Return whether Whisper found no speech: high no-speech probability and low confidence in the text."""
    return no_speech_prob > LOOKS_EMPTY and avg_logprob < LOOKS_UNSURE


def join_samples(audio: Audio, pack: Pack) -> Samples:
    """Return the samples [n] of a pack at 16 kHz. Raises ValueError if `audio` has another rate."""
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"Whisper needs audio at {SPEECH_RATE} Hz, not {audio.rate}")
    ends = [[convert_position(position, MASTER_RATE, SPEECH_RATE) for position in stretch] for stretch in pack]
    return np.concatenate([audio.samples[start:stop] for start, stop in ends])


def locate_word(pack: Pack, start: float, end: float) -> Region:
    """Return the position in the recording of a word at `start` to `end` seconds of the pack: in the region that contains its middle."""
    first, last = round(float(start) * MASTER_RATE), round(float(end) * MASTER_RATE)
    offset = 0
    for stretch in pack:
        length = stretch.stop - stretch.start
        if (first + last) // 2 <= offset + length or stretch is pack[-1]:
            break
        offset += length
    return Region(*(min(max(stretch.start + position - offset, stretch.start), stretch.stop) for position in (first, last)))


def transcribe_windows(
    windows: list[Region],
    transcribe: Callable[[list[Pack]], list[TextUnit]],
    longest: float | None = None,
    report: Callable[[float], None] = lambda _done: None,
) -> list[TextUnit]:
    """Return the words of all windows in order. `transcribe`: handles one batch of packs. `longest`: maximum seconds of a pack, for models
    that cannot handle longer ones. `report`: gets the seconds of the packs that are finished, after each batch.

    A pack that fails gives a unit without text and with the error for each of its regions; the other packs are unaffected.
    """
    return transcribe_packs(pack_windows(windows, longest), transcribe, report)


def transcribe_packs(
    packs: Iterable[Pack], transcribe: Callable[[list[Pack]], list[TextUnit]], report: Callable[[float], None] = lambda _done: None
) -> list[TextUnit]:
    """As `transcribe_windows`, of packs."""
    # The longest pack of a batch determines its time; with the longest batch first, lack of memory shows early.
    ordered = sorted(packs, key=lambda pack: (-sum_seconds(pack), pack))
    units, done = list[TextUnit](), 0.0
    for batch in (ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)):
        units += _transcribe_halving(batch, transcribe)
        done += sum(map(sum_seconds, batch))
        report(done)
    return sorted(units, key=lambda unit: (unit.start, unit.stop))


def _join_window(pack: Pack, window: Region) -> Pack:
    last, kept = pack[-1], int(PAUSE_KEPT_SECONDS * MASTER_RATE)
    middle = Region(last.stop, window.start).middle
    return (*pack[:-1], Region(last.start, min(last.stop + kept, middle)), Region(max(window.start - kept, middle), window.stop))


def _transcribe_halving(batch: list[Pack], transcribe: Callable[[list[Pack]], list[TextUnit]]) -> list[TextUnit]:
    """Split a failing batch in half: smaller batches may fit into memory, and a bad pack fails alone."""
    try:
        return transcribe(batch)
    except Exception as error:  # engines fail in many ways; the other audio must not be lost
        if len(batch) == 1:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            return [TextUnit(text="", start=stretch.start, stop=stretch.stop, error=reason) for stretch in batch[0]]
    middle = len(batch) // 2  # outside the handler, where the error would keep the tensors of the failed attempt alive
    return _transcribe_halving(batch[:middle], transcribe) + _transcribe_halving(batch[middle:], transcribe)
