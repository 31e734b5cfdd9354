"""Voice activity detection with silero-vad at 16 kHz; speech regions in samples of the 24 kHz master; windows for Whisper."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples, convert_position
from overtone.data_prep.parallel.torch_settings import restore_thread_count

if TYPE_CHECKING:
    from torch import Tensor

    from overtone.data_prep.segmentation.silero_network import FrameModel, SileroModel, SileroNetwork

WINDOW_SECONDS = 28.0
"""Maximum window for Whisper: its input is 30 s, and the edges need a margin."""
WINDOW_GAP_SECONDS = 2.0
LATE = 1 / 2
"""Share of the maximum window after which a window may end at a pause although more would fit. That gives a sixth more windows of 28 s,
but a sentence split by the end of a window would be transcribed without its context."""
MOST_REGIONS = 500
"""Regions considered for one window; 28 s contain fewer, even of the shortest."""
WINDOW_AIR_SECONDS = 0.15
MIN_SILENCE_MS, MIN_SPEECH_MS, PAD_MS = 150, 100, 30
"""Minimum silence, minimum speech and padding in milliseconds. Measured: 30 ms of padding loses 0.1 % of true speech; 150 ms of minimum
silence leaves a gap of at least 90 ms."""


class Region(NamedTuple):
    """Samples `start:stop` at `MASTER_RATE`."""

    start: int
    stop: int

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / MASTER_RATE

    @property
    def middle(self) -> int:
        return (self.start + self.stop) // 2


def describe_settings() -> dict[str, str | int]:
    """Return everything that the regions depend on besides the audio: part of the cache key."""
    return {"silero-vad": version("silero-vad"), "silence": MIN_SILENCE_MS, "speech": MIN_SPEECH_MS, "pad": PAD_MS}


@dataclass(frozen=True)
class SpeechDetector:
    """silero-vad, loaded."""

    wheel: SileroModel
    """The model of the package: it processes one frame of 32 ms per call."""
    network: SileroNetwork | None
    """The same network for blocks of frames; None if the package has another one."""


@functools.cache
def load_vad() -> SpeechDetector:
    """Load the silero-vad model, once per process; the package contains its weights."""
    with restore_thread_count():
        import silero_vad

        from overtone.data_prep.segmentation import silero_network

        wheel = silero_vad.load_silero_vad()
        return SpeechDetector(wheel, silero_network.load_network(wheel))


def find_speech(
    detector: SpeechDetector,
    audio: Audio,
    length: int,
    report: Callable[[int], None] = lambda _done: None,
    scan: SpeechScan | None = None,
) -> list[Region]:
    """Return the regions of speech in `audio` (16 kHz), for a master of `length` samples. `report` gets the number of samples of `audio`
    processed so far; `scan` has the probabilities of what was decoded earlier. Raises ValueError at another rate."""
    if audio.rate != SPEECH_RATE:
        raise ValueError(f"voice activity detection needs audio at {SPEECH_RATE} Hz, not {audio.rate}")
    if scan is None and detector.network is not None:
        scan = SpeechScan(detector.network)
    if scan is not None:
        scan.advance(audio.samples, True, report)
        return scan.find_regions(0, length, len(audio.samples))
    with _use_one_thread():
        import torch

        return _find_regions(torch.from_numpy(audio.samples), detector.wheel, length)


class SpeechScan:
    """Speech detection in a recording whose samples at 16 kHz arrive gradually; its regions are those of the whole recording."""

    def __init__(self, network: SileroNetwork) -> None:
        from overtone.data_prep.segmentation import silero_network

        self._frame = silero_network.FRAME
        self._probabilities = silero_network.ProbabilityScan(network)

    def advance(self, samples: Samples, is_complete: bool, report: Callable[[int], None] = lambda _done: None) -> bool:
        """Process `samples` [n], all samples received so far, in whole blocks, or to the end if they are complete; returns whether a block
        was processed."""
        import torch

        before = self._probabilities.frames
        with _use_one_thread():
            tensor = torch.from_numpy(samples)
            while self._probabilities.advance(tensor, is_complete):
                report(min(self._probabilities.frames * self._frame, len(samples)))
        return self._probabilities.frames > before

    def find_regions(self, start: int, length: int, samples: int | None = None) -> list[Region]:
        """Return the regions from `start` on, which is 0 or in the middle of a pause, on the border of two frames, of a recording of
        `length` samples at `MASTER_RATE`. `samples`: those at 16 kHz if all were processed; None: there may be more, so the last region is
        omitted, which may be longer with them."""
        import torch

        first = convert_position(start, MASTER_RATE, SPEECH_RATE) // self._frame
        probabilities = self._probabilities.get_probabilities()[first:]
        count = len(probabilities) * self._frame if samples is None else samples - first * self._frame
        with _use_one_thread():
            found = _find_regions(torch.zeros(1).expand(count), _ReplayedProbabilities(probabilities), length - start)
        moved = [Region(region.start + start, region.stop + start) for region in found]
        return moved if samples is not None else moved[:-1]


def _find_regions(samples: Tensor, model: FrameModel, length: int) -> list[Region]:
    """Return the regions by silero-vad's rules for `samples` [n] at 16 kHz and a `model` that gives the probability of each frame."""
    from silero_vad import get_speech_timestamps

    found = get_speech_timestamps(
        samples,
        model,
        sampling_rate=SPEECH_RATE,
        min_speech_duration_ms=MIN_SPEECH_MS,
        min_silence_duration_ms=MIN_SILENCE_MS,
        speech_pad_ms=PAD_MS,
    )
    regions = [Region(*(convert_position(int(part[edge]), SPEECH_RATE, MASTER_RATE) for edge in ("start", "end"))) for part in found]
    return [Region(region.start, min(region.stop, length)) for region in regions if region.start < length]


@contextlib.contextmanager
def _use_one_thread() -> Iterator[None]:
    """Use one thread: with so small a network more threads only wait for each other, a hundred times longer on a busy machine."""
    import torch

    with restore_thread_count():
        torch.set_num_threads(1)
        yield


class _ReplayedProbabilities:
    """Known probabilities, with the interface of silero-vad's model: its function that turns probabilities into regions calls a model for
    each frame, and a function without that call exists only in some releases."""

    def __init__(self, probabilities: Tensor) -> None:
        self._probabilities = probabilities

    def reset_states(self) -> None:
        """Do nothing; silero-vad calls this before the first frame."""
        self._next = iter(self._probabilities)

    def __call__(self, _frame: Tensor, _rate: int) -> Tensor:
        return next(self._next)


def list_gaps(regions: list[Region], length: int) -> list[Region]:
    """Return the gaps before, between and after the regions: one more than regions; the outer ones may be empty."""
    starts = [0, *(region.stop for region in regions)]
    stops = [*(region.start for region in regions), length]
    return [Region(start, stop) for start, stop in zip(starts, stops, strict=True)]


def make_windows(regions: list[Region], audio: Audio, longest: float | None = None) -> list[Region]:
    """Group neighbouring regions into windows for Whisper with a margin, each at most 28 s (or `longest`), never across a long pause. A
    window that could hold more ends at its longest late pause, which is more likely between two sentences than inside one.

    A longer region is split at its quietest position; clips are never cut there.
    """
    seconds = WINDOW_SECONDS if longest is None else longest
    pieces = [piece for region in regions for piece in _split_region(region, audio, seconds)]
    packed, first = list[Region](), 0
    while first < len(pieces):
        count = _count_first_window(pieces[first : first + MOST_REGIONS], seconds)
        packed.append(Region(pieces[first].start, pieces[first + count - 1].stop))
        first += count
    around = itertools.pairwise(list_gaps(packed, len(audio.samples)))
    air = int(WINDOW_AIR_SECONDS * MASTER_RATE)
    return [
        Region(max(region.start - air, before.middle), min(region.stop + air, after.middle))
        for region, (before, after) in zip(packed, around, strict=True)
    ]


def _count_first_window(pieces: list[Region], seconds: float) -> int:
    """Return the number of pieces that go into one window."""
    lengths = [Region(pieces[0].start, piece.stop).seconds for piece in pieces]
    pauses = [Region(one.stop, other.start).seconds for one, other in itertools.pairwise(pieces)]
    fitting = sum(length <= seconds for length in lengths)
    long_pause = next((count for count, pause in enumerate(pauses, start=1) if pause > WINDOW_GAP_SECONDS), len(pieces))
    if long_pause <= fitting:
        return long_pause
    late = [count for count in range(1, fitting + 1) if lengths[count - 1] >= LATE * seconds]
    return max(late, key=lambda count: (pauses[count - 1], count), default=max(1, fitting))


def find_quietest(audio: Audio, start: int, stop: int) -> int:
    """Return the centre of the quietest 10 ms in `start:stop`; the centre of the range if it is shorter."""
    powers = _measure_powers(audio, start, stop)
    return _get_centre(audio, start, int(powers.argmin())) if len(powers) else (start + stop) // 2


def find_faded(audio: Audio, pause: Region, start: int, stop: int) -> int | None:
    """Return the centre of the first 10 ms in `start:stop` that are at most 3 dB above the pause's median; None if none are."""
    pause_powers = _measure_powers(audio, pause.start, pause.stop)
    if not len(pause_powers):
        return None
    faded = np.flatnonzero(_measure_powers(audio, start, stop) <= 2 * np.median(pause_powers))
    return _get_centre(audio, start, int(faded[0])) if len(faded) else None


def _measure_powers(audio: Audio, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Return the sum of squares of each whole 10 ms in `start:stop`."""
    frame = audio.rate // 100
    count = (stop - start) // frame
    return np.square(audio.samples[start : start + count * frame].astype(np.float64)).reshape(count, frame).sum(axis=1)


def _get_centre(audio: Audio, start: int, index: int) -> int:
    """Return the centre of the 10 ms number `index` after `start`."""
    frame = audio.rate // 100
    return start + index * frame + frame // 2


def _split_region(region: Region, audio: Audio, seconds: float) -> Iterator[Region]:
    limit = int(seconds * MASTER_RATE)
    start = region.start
    while region.stop - start > limit:
        at = find_quietest(audio, start + limit // 2, start + limit)
        yield Region(start, at)
        start = at
    yield Region(start, region.stop)
