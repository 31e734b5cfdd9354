"""Speech regions of the embedded sample, and the arithmetic on regions."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import soxr
import torch
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, load_track, probe_recording
from overtone.data_prep.segmentation import silero_network
from overtone.data_prep.segmentation import vad as vad_module
from overtone.data_prep.segmentation.recording_parts import STEP
from overtone.data_prep.segmentation.vad import (
    Region,
    SpeechDetector,
    SpeechScan,
    find_faded,
    find_quietest,
    find_speech,
    list_gaps,
    load_vad,
    make_windows,
)

SECOND = MASTER_RATE


def hearing(master: Audio) -> Audio:
    return Audio(soxr.resample(master.samples, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE)


def test_speech_is_detected_where_the_sample_has_it(vad, railway, said) -> None:
    regions = find_speech(vad, hearing(railway), len(railway.samples))
    heard = np.zeros(len(railway.samples), bool)
    for region in regions:
        heard[region.start : region.stop] = True
    spoken = np.zeros_like(heard)
    for one in said:
        spoken[int((one["start"] + 0.2) * SECOND) : int((one["end"] - 0.1) * SECOND)] = True  # the synthesiser's own silence at both ends
    assert heard[spoken].mean() > 0.95
    pauses = [int((one["end"] + 0.15) * SECOND) for one in said[:-1]]
    assert not heard[pauses].any()


def test_speech_times_depend_neither_on_the_rate_nor_on_the_channels(vad, one_sentence, tmp_path, write_sound) -> None:
    found = {}
    for rate in (8000, 22050, 48000):
        samples = soxr.resample(one_sentence.samples, MASTER_RATE, rate, quality="VHQ")
        for name, channels in (("mono", [samples]), ("stereo", [samples, samples]), ("right", [0 * samples, samples])):
            path = write_sound(tmp_path / f"{rate}{name}.flac", np.stack(channels, axis=1), rate)
            master, sound = load_track(path, probe_recording(path), MASTER_RATE, SPEECH_RATE)
            found[rate, name] = find_speech(vad, sound, len(master.samples))
    assert len(found) == 9
    expected = found[22050, "mono"]
    for regions in found.values():
        assert np.abs(np.subtract(regions, expected)).max() <= 0.04 * SECOND  # the detector steps by 32 ms


def test_the_detector_refuses_another_sample_rate(vad, railway) -> None:
    with pytest.raises(ValueError, match="16000 Hz, not 24000"):
        find_speech(vad, railway, len(railway.samples))


def test_loading_leaves_the_thread_count_alone(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "silero_vad"]:
        monkeypatch.delitem(sys.modules, name)  # its first import is what changes the count
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        load_vad.__wrapped__()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_speech_is_detected_with_one_thread_and_the_thread_count_is_restored(vad, one_sentence) -> None:
    threads, before = set(), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        sound = hearing(one_sentence)
        found = find_speech(vad, sound, len(one_sentence.samples), lambda _done: threads.add(torch.get_num_threads()))
        assert (threads, torch.get_num_threads()) == ({1}, 3)
    finally:
        torch.set_num_threads(before)
    assert found == find_speech(vad, hearing(one_sentence), len(one_sentence.samples))


def test_blocks_give_the_regions_of_the_wheel(vad, railway) -> None:
    """Without the network for blocks, silero-vad's own code goes through the frames."""
    sound = hearing(railway)
    assert vad.network is not None
    by_frame = find_speech(SpeechDetector(vad.wheel, None), sound, len(railway.samples))
    assert find_speech(vad, sound, len(railway.samples)) == by_frame


def test_memory_mapped_samples_give_the_same_regions_without_a_copy(vad, one_sentence, tmp_path) -> None:
    """Without a copy: hours of a recording stay on the disk."""
    sound = hearing(one_sentence)
    sound.samples.tofile(tmp_path / "samples")
    mapped = Audio(np.memmap(tmp_path / "samples", np.float32, "c"), SPEECH_RATE)
    assert torch.from_numpy(mapped.samples).data_ptr() == mapped.samples.ctypes.data
    assert find_speech(vad, mapped, len(one_sentence.samples)) == find_speech(vad, sound, len(one_sentence.samples))


@pytest.mark.parametrize(
    ("detected", "length", "found"),
    [
        ([(160, 1600)], 2400, [(240, 2400)]),
        ([(160, 1600)], 2399, [(240, 2399)]),
        ([(160, 1600)], 300, [(240, 300)]),
        ([(160, 1600)], 240, []),
        ([(0, 800), (1600, 3200)], 2400, [(0, 1200)]),
        ([(0, 800), (1600, 3200)], 2401, [(0, 1200), (2400, 2401)]),
    ],
)
def test_no_region_ends_after_the_last_sample(
    detected: list[tuple[int, int]], length: int, found: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 16 kHz sound may last a sample longer than the master, and the detector's padding reaches to its end."""
    import silero_vad

    monkeypatch.setattr(silero_vad, "get_speech_timestamps", lambda *_, **__: [{"start": start, "end": stop} for start, stop in detected])
    sound = Audio(np.zeros(max(stop for _, stop in detected), np.float32), SPEECH_RATE)
    assert find_speech(SpeechDetector(None, None), sound, length) == [Region(*edges) for edges in found]


@st.composite
def spans(draw) -> tuple[list[Region], int]:
    """Regions in order, with pauses between them, and a length that holds them."""
    edges = sorted(draw(st.sets(st.integers(0, 200 * SECOND), min_size=2, max_size=24)))
    edges = edges[: len(edges) // 2 * 2]
    regions = [Region(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)]
    return regions, edges[-1] + draw(st.integers(0, SECOND))


@given(spans())
def test_regions_and_gaps_fill_the_recording(case) -> None:
    regions, length = case
    between = list_gaps(regions, length)
    pieces = sorted([*regions, *between])
    assert len(between) == len(regions) + 1
    assert pieces[0].start == 0
    assert pieces[-1].stop == length
    assert all(one.stop == other.start for one, other in itertools.pairwise(pieces))


SILENCE = Audio(np.zeros(202 * SECOND, np.float32), MASTER_RATE)


@given(spans())
def test_windows_hold_all_speech_fit_whisper_and_do_not_overlap(case) -> None:
    regions, length = case
    result = make_windows(regions, SILENCE.cut(0, length))
    assert all(window.seconds < 29 for window in result)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(result))
    covered = sum(
        min(region.stop, window.stop) - max(region.start, window.start)
        for region in regions
        for window in result
        if min(region.stop, window.stop) > max(region.start, window.start)
    )
    assert covered == sum(region.stop - region.start for region in regions)
    for window in result:
        inside = [region for region in regions if region.start < window.stop and region.stop > window.start]
        assert all((other.start - one.stop) <= 2 * SECOND for one, other in itertools.pairwise(inside))


def test_a_region_too_long_for_whisper_is_split_where_it_is_quiet() -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 40 * SECOND).astype(np.float32)
    samples[20 * SECOND : 20 * SECOND + 720] *= 0.01
    first, second = make_windows([Region(0, 40 * SECOND)], Audio(samples, MASTER_RATE))
    assert first.stop == second.start
    assert 20 * SECOND <= first.stop <= 20 * SECOND + 720


def test_a_window_ends_at_its_longest_late_pause() -> None:
    """Six stretches of 4 s: 28 s hold all six but for the pause after the fifth, which is longer than that after the sixth; an early pause,
    however long, ends nothing."""

    def spoken(pauses: list[float]) -> list[Region]:
        starts = [0.0]
        for pause in pauses:
            starts.append(starts[-1] + 4 + pause)
        return [Region(int(start * SECOND), int((start + 4) * SECOND)) for start in starts]

    silence = SILENCE.cut(0, 60 * SECOND)
    ends = [window.stop for window in make_windows(spoken([1.5, 0.2, 0.2, 0.2, 0.8, 0.2, 0.2, 0.2]), silence)]
    assert len(ends) == 2 and ends[0] == pytest.approx((20 + 2.1 + 0.15) * SECOND, abs=2), "after the fifth"
    (only,) = make_windows(spoken([1.5, 0.2, 0.2, 0.8, 0.2]), silence)
    assert only.stop == pytest.approx((24 + 2.9 + 0.15) * SECOND, abs=2), "what fits as a whole stays whole"


def test_windows_are_no_longer_than_the_model_allows() -> None:
    regions = [Region(at * SECOND, at * SECOND + SECOND) for at in range(0, 40, 2)]
    silence = Audio(np.zeros(41 * SECOND, np.float32), MASTER_RATE)
    assert len(make_windows(regions, silence)) == 2
    short = make_windows(regions, silence, 11.0)
    assert len(short) == 4 and all(window.seconds <= 12.0 for window in short)


def test_hours_without_a_pause_are_split_without_deep_recursion(monkeypatch) -> None:
    """More pieces than Python may nest calls."""
    monkeypatch.setattr(vad_module, "WINDOW_SECONDS", 0.5)
    length = 400 * SECOND
    hours = Audio(np.broadcast_to(np.float32(0.0), (length,)), MASTER_RATE)
    result = make_windows([Region(0, length)], hours)
    assert len(result) > sys.getrecursionlimit()
    assert (result[0].start, result[-1].stop) == (0, length)
    assert all(one.stop == other.start for one, other in itertools.pairwise(result))


def test_the_quietest_position_is_found() -> None:
    samples = np.ones(SECOND, np.float32)
    samples[4800:5040] = 0
    audio = Audio(samples, MASTER_RATE)
    assert find_quietest(audio, 0, SECOND) == 4920
    assert find_quietest(audio, 100, 200) == 150
    assert find_quietest(audio, 100, 100) == 100


def test_the_first_frame_that_is_nearly_as_quiet_as_the_pause_is_where_the_sound_has_faded() -> None:
    """Seven 10 ms of speech, one each at 6 and at 2.5 dB above the pause, and the pause."""
    amplitudes = [1.0] * 7 + [0.2, 0.133] + [0.1] * 31
    audio = Audio(np.repeat(np.array(amplitudes, np.float32), SECOND // 100), SECOND)
    pause = Region(7 * 240, 40 * 240)
    assert find_faded(audio, pause, 7 * 240, 20 * 240) == 8 * 240 + 120
    assert find_faded(audio, pause, 12 * 240, 20 * 240) == 12 * 240 + 120
    assert find_faded(audio, pause, 0, 8 * 240) is None
    assert find_faded(audio, pause, 12 * 240, 12 * 240 + 100) is None  # shorter than 10 ms
    assert find_faded(audio, Region(7 * 240, 7 * 240 + 100), 7 * 240, 20 * 240) is None


def test_speech_is_the_same_while_the_samples_arrive(vad, railway, monkeypatch) -> None:
    """A scan knows all regions but the last one of what it has; from the middle of a pause on, the same ones."""
    monkeypatch.setattr(silero_network, "BLOCK", 10)
    sound, length = hearing(railway), len(railway.samples)
    whole = find_speech(vad, sound, length)
    scan, seen = SpeechScan(vad.network), set[int]()
    for stop in range(0, len(sound.samples), 23_456):
        scan.advance(sound.samples[:stop], False)
        found = scan.find_regions(0, length)
        assert found == whole[: len(found)]
        seen.add(len(found))
        for one, other in itertools.pairwise(found):
            middle = (one.stop + other.start) // 2
            start = middle - middle % STEP
            assert scan.find_regions(start, length) == [region for region in found if region.start > start]
    assert seen >= set(range(1, len(whole) - 1))
    assert find_speech(vad, sound, length, scan=scan) == whole
