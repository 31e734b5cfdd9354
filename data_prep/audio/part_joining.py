"""Reads the parts of a joined file one after the other, as one recording of one format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from overtone.data_prep.audio.decoded_stream import (
    DECODE_ERRORS,
    AudioError,
    Samples,
    Stream,
    describe_missing,
    describe_stop,
    fit_channels,
)
from overtone.data_prep.audio.file_view import FilePart
from overtone.finetune.errors import format_count

SHOWN = 3
"""Parts that a note lists."""

OpenPart = Callable[[FilePart], Stream]


def join_parts(parts: list[FilePart], open_part: OpenPart) -> Stream:
    """Join all parts, in the largest rate and number of channels among them. Raises `AudioError` if none can be decoded."""
    formats: list[tuple[int, int, int | None]] = []
    first: AudioError | None = None
    for part in parts:
        try:
            stream = open_part(part)
        except AudioError as error:
            first = first or error
            continue
        formats.append((stream.rate, stream.channels, stream.declared))
    if not formats:
        assert first is not None
        raise first
    rate, channels = max(found[0] for found in formats), max(found[1] for found in formats)
    known = [frames * rate // own for own, _, frames in formats if frames is not None]
    declared = sum(known) if len(known) == len(formats) else None
    missing: list[str] = []
    notes: list[str] = []
    return Stream(rate, channels, declared, _read_parts(parts, open_part, rate, channels, missing, notes), missing=missing, notes=notes)


def _read_parts(
    parts: list[FilePart], open_part: OpenPart, rate: int, channels: int, missing: list[str], notes: list[str]
) -> Iterator[Samples]:
    """Yield the blocks of all parts, and append to `missing` and `notes`. Damage ends only the part that it is in."""
    begins: list[float] = []
    others: list[str] = []
    done = 0
    for number, part in enumerate(parts, 1):
        name = f"part {number} of {len(parts)}"
        try:
            stream = open_part(part)
        except AudioError as error:
            missing.append(f"{name} at {done / rate:.2f} s: {error.detail}")
            continue
        begins.append(done / rate)
        if (stream.rate, stream.channels) != (rate, channels):
            others.append(f"{name} from {stream.rate} Hz and {format_count(stream.channels, 'channel')}")
        fitting, frames, problem = _BlockFitting(stream.rate, rate, channels), 0, ""
        try:
            for block in stream.blocks:
                frames += len(block)
                yield (fitted := fitting.convert(block))
                done += len(fitted)
        except DECODE_ERRORS as error:
            problem = describe_stop(stream, frames, error)
        yield (rest := fitting.finish())
        done += len(rest)
        problem = problem or describe_missing(stream, frames)
        missing += [f"{name}: {problem}"] if problem else []
        notes += [f"{name}: {note}" for note in stream.notes]
    places = ", ".join(f"{seconds:.2f} s" for seconds in begins[1 : SHOWN + 1]) + (", …" if len(begins) > SHOWN + 1 else "")
    notes.insert(0, f"{len(parts)} files joined into one, all read (the next begin at {places})")
    if others:
        listed = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        notes.insert(1, f"converted to {rate} Hz and {format_count(channels, 'channel')}: {listed}")


class _BlockFitting:
    """Owns a resampler: converts the blocks of one part to `rate` and `channels`."""

    def __init__(self, own_rate: int, rate: int, channels: int) -> None:
        import soxr

        self._channels = channels
        self._resampler = None if own_rate == rate else soxr.ResampleStream(own_rate, rate, channels, dtype="float32", quality="VHQ")

    def convert(self, block: Samples) -> Samples:
        """Return the samples [frames, channels] of a block in the common format."""
        fitted = fit_channels(block, self._channels)
        return fitted if self._resampler is None else self._resampler.resample_chunk(fitted)

    def finish(self) -> Samples:
        """Return the samples [frames, channels] that the resampler holds back."""
        nothing = np.zeros((0, self._channels), np.float32)
        return nothing if self._resampler is None else self._resampler.resample_chunk(nothing, last=True)
