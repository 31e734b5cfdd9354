"""Containers whose packets have times: a recording is what a player plays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from overtone.data_prep.audio.decoded_stream import AudioError
from overtone.data_prep.audio.stream_reader import open_stream
from overtone.data_prep.audio.waveform import load_track, probe_recording, read_audio_unchanged
from tests.data_prep.audio.encoded_parts import chirp, encode, write_moved

KINDS = {
    "mkv": ("matroska", "aac", 48_000, "mpeg4"),
    "pcm.mkv": ("matroska", "pcm_s16le", 44_100, "mpeg4"),
    "mp3.mkv": ("matroska", "libmp3lame", 44_100, "mpeg4"),
    "flac.mka": ("matroska", "flac", 48_000, "mpeg4"),
    "webm": ("webm", "libopus", 48_000, "libvpx"),
    "mp4": ("mp4", "aac", 44_100, "mpeg4"),
    "opus.mp4": ("mp4", "libopus", 48_000, "mpeg4"),
    "mov": ("mov", "alac", 44_100, "mpeg4"),
    "3gp": ("3gp", "aac", 22_050, "mpeg4"),
    "ts": ("mpegts", "aac", 44_100, "mpeg2video"),
    "mp3.ts": ("mpegts", "libmp3lame", 44_100, "mpeg2video"),
    "ac3.ts": ("mpegts", "ac3", 48_000, "mpeg2video"),
    "mpg": ("mpeg", "mp2", 44_100, "mpeg2video"),
    "flv": ("flv", "aac", 44_100, "flv1"),
    "wma": ("asf", "wmav2", 44_100, "wmv2"),
    "opus": ("ogg", "libopus", 48_000, ""),
    "flac.oga": ("ogg", "flac", 48_000, ""),
}
QUICK = ("mkv", "webm", "mp4", "ts", "flv", "wma")
PAUSE, LATE = 3.25, 2.5
"""Seconds."""


def read(path: Path) -> tuple[np.ndarray, list[str]]:
    """Samples [n] of the first channel, and the notes."""
    stream = open_stream(path)
    return np.concatenate(list(stream.blocks))[:, 0], stream.notes


def write(path: Path, name: str, move: Callable[[float], float], picture: bool = False) -> Path:
    container, codec, rate, film = KINDS[name]
    return write_moved(path, container, codec, chirp(3.0, rate), rate, move, film if picture else "")


def decode_all(path: Path) -> np.ndarray:
    """Samples [n] of the first channel as FFmpeg decodes them, whatever their times."""
    with av.open(str(path)) as file:
        fitting = av.AudioResampler(format="fltp")
        frames = [plain.to_ndarray()[0] for frame in file.decode(audio=0) for plain in fitting.resample(frame)]
    return np.concatenate(frames)


def split_at_silence(found: np.ndarray, plain: np.ndarray) -> tuple[int, int]:
    """Position and length of the silence that `found` has and `plain` has not; all other samples are the same."""
    length = len(found) - len(plain)
    differs = np.flatnonzero(found[: len(plain)] != plain)
    at = int(differs[0]) if len(differs) else len(plain)
    assert not found[at : at + length].any()
    assert np.array_equal(found[at + length :], plain[at:])
    return at, length


@pytest.mark.parametrize("name", KINDS)
def test_a_pause_of_the_packets_is_silence_and_every_other_sample_stays(name: str, tmp_path: Path) -> None:
    rate = KINDS[name][2]
    paused = write(tmp_path / f"paused.{name}", name, lambda at: at + PAUSE * (at > 1.5))
    found, notes = read(paused)
    plain = decode_wma(paused) if name == "wma" else decode_all(paused)
    at, length = split_at_silence(found, plain)
    assert abs(length / rate - PAUSE) <= (0.0021 if name != "wma" else 0.1)
    assert at / rate == pytest.approx(1.5, abs=1 if KINDS[name][0] == "ogg" else 0.12)  # Ogg times only the end of a page
    assert notes == [f"{length / rate:.2f} s of silence where its packets pause or are lost (at {at / rate:.2f} s)"]
    assert probe_recording(paused).warning == ""


def decode_wma(path: Path) -> np.ndarray:
    """As `decode_all`, without the first frame only: FFmpeg skips two."""
    from av.codec.context import Flags2

    with av.open(str(path)) as file:
        file.streams.audio[0].codec_context.flags2 |= Flags2.skip_manual
        return np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)][1:])


FILMS = [name for name, kind in KINDS.items() if kind[3]]


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FILMS])
def test_sound_that_starts_after_the_picture_keeps_its_time(name: str, tmp_path: Path) -> None:
    rate = KINDS[name][2]
    late, _ = read(write(tmp_path / f"late.{name}", name, lambda at: at + LATE, picture=True))
    prompt, notes = read(write(tmp_path / f"prompt.{name}", name, lambda at: at, picture=True))
    assert notes == []
    starts = [int(np.flatnonzero(np.abs(samples) > 0.1)[0]) / rate for samples in (prompt, late)]
    assert starts[1] - starts[0] == pytest.approx(LATE, abs=0.05)
    assert starts[0] < 0.1
    first = int(LATE * rate) - rate // 10
    assert not late[:first].any()


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KINDS])
def test_film_without_a_pause_gets_no_silence_and_no_note(name: str, tmp_path: Path) -> None:
    rate, picture = KINDS[name][2:]
    found, notes = read(write(tmp_path / f"plain.{name}", name, lambda at: at, picture=bool(picture)))
    assert abs(len(found) / rate - 3) < 0.13
    assert notes == []
    assert probe_recording(tmp_path / f"plain.{name}").warning == ""


@pytest.mark.parametrize("name", ["opus", "webm", "mkv", "mp4"])
def test_padding_before_the_sound_is_not_missing_from_a_short_clip(name: str, tmp_path: Path) -> None:
    container, codec, rate, _ = KINDS[name]
    path = write_moved(tmp_path / f"short.{name}", container, codec, chirp(0.2, rate), rate, lambda at: at, "")
    assert len(read_audio_unchanged(path).samples) / rate == pytest.approx(0.2, abs=0.05)


def test_times_that_jitter_change_no_sample(tmp_path: Path) -> None:
    jitter = np.random.default_rng(0)
    path = write(tmp_path / "live.mkv", "mkv", lambda at: max(0.0, at + jitter.integers(-4, 5) / 1000))
    assert np.array_equal(read(path)[0], decode_all(path))
    assert read(path)[1] == []


def test_a_transport_stream_whose_clock_wraps_has_no_pause(tmp_path: Path) -> None:
    """Its 33 bits wrap after 26.5 hours."""
    path = write(tmp_path / "wraps.ts", "ts", lambda at: at + 2**33 / 90_000 - 1.5)
    with av.open(str(path)) as file:
        assert file.streams.audio[0].start_time < 0, "FFmpeg counts from the wrap"
    assert np.array_equal(read(path)[0], decode_all(path))
    assert read(path)[1] == []


def test_joined_transport_streams_are_read_to_the_end(tmp_path: Path) -> None:
    one = write(tmp_path / "one.ts", "ts", lambda at: at + 100)
    two = write(tmp_path / "two.ts", "ts", lambda at: at + 7)
    far = write(tmp_path / "far.ts", "ts", lambda at: at + 50_000)
    path = tmp_path / "all.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in (one, two, far)))
    found, notes = read(path)
    assert np.array_equal(found, decode_all(path))
    assert len(found) / 44_100 == pytest.approx(9, abs=0.15)
    assert len(notes) == 1 and notes[0].startswith("the clock of its packets is set anew, taken for no pause (at 3.0")
    assert probe_recording(path).warning == ""


def test_packets_that_overlap_are_all_played(tmp_path: Path) -> None:
    path = write(tmp_path / "over.mkv", "mkv", lambda at: at - 0.15 * max(0.0, at - 1.5))
    found, notes = read(path)
    assert np.array_equal(found, decode_all(path))
    assert len(notes) == 1 and notes[0].startswith("packets whose times overlap by up to 0.22 s, all played (at 2.1")


def test_a_pause_of_years_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "hostile.mkv", "pcm.mkv", lambda at: at + 10**8 * (at > 1.5), picture=True)
    with pytest.raises(AudioError, match=r"times of its packets jump by 27,778 hours at 1.5\d s; write the file again"):
        probe_recording(path)


def test_a_late_stream_and_parts_of_it_have_the_samples_of_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "late.mkv", "mkv", lambda at: at + LATE + PAUSE * (at > 1.5), picture=True)
    track = probe_recording(path)
    stored = load_track(path, track, track.rate)[0].samples
    whole = read(path)[0]
    assert np.array_equal(stored, whole - np.float32(track.offset))
    assert np.array_equal(read_audio_unchanged(path).samples, whole)


def test_a_live_file_that_declares_the_time_of_its_end_is_whole(tmp_path: Path) -> None:
    """Matroska declares when its last packet ends, also if the first one is late: without a film, a player starts with it."""
    path = write(tmp_path / "late.mka", "flac.mka", lambda at: at + 40.0)
    found, notes = read(path)
    assert (len(found) / 48_000, notes) == (pytest.approx(3.0), [])
    assert probe_recording(path).warning == ""


@pytest.mark.parametrize("name", ["opus", "flac.oga", "wma"])
def test_a_broadcast_that_was_recorded_from_its_middle_on_is_whole(name: str, tmp_path: Path) -> None:
    """The times start late, and the end is declared as a time. For FLAC, FFmpeg counts the first page from 0."""
    path = write(tmp_path / f"radio.{name}", name, lambda at: at + 40.0)
    found, notes = read(path)
    assert (len(found) / KINDS[name][2], notes) == (pytest.approx(3.0, abs=0.1), [])
    assert probe_recording(path).warning == ""


def test_a_film_that_is_longer_than_its_sound_is_no_truncated_recording(tmp_path: Path) -> None:
    """ASF declares the duration of the whole for each of its streams."""
    late = write(tmp_path / "late.wma", "wma", lambda at: at + LATE, picture=True)
    assert probe_recording(late).warning == ""


@pytest.mark.parametrize("name", ["mkv", "webm", "avi"])
def test_a_file_shorter_than_its_container_says_is_truncated(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"cut.{name}"
    if name == "avi":
        path.write_bytes(encode("avi", "libmp3lame", chirp(6.0, 44_100), 44_100))
    else:
        write(path, name, lambda at: at, picture=True)
    assert probe_recording(path).warning == ""
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    assert probe_recording(path).warning.startswith("truncated: ")


def test_a_change_of_the_format_in_a_stream_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "changes.ts"
    path.write_bytes(encode("mpegts", "aac", chirp(2.0, 48_000), 48_000) + encode("mpegts", "aac", chirp(2.0, 32_000, 2), 32_000))
    found, notes = read(path)
    assert len(found) / 48_000 == pytest.approx(4, abs=0.15)
    assert notes[-1].startswith("the format changes at 2.0")
    assert notes[-1].endswith("to 32000 Hz and 2 channels: converted to 48000 Hz and 1 channel")
    for begin, level in ((0.5, 0.4), (2.6, 0.35)):  # 0.35: the mean of both channels
        assert found[int(begin * 48_000) : int((begin + 1) * 48_000)].std() == pytest.approx(level / np.sqrt(2), rel=0.08)


def test_amr_of_a_telephone_is_decoded(tmp_path: Path) -> None:
    """No encoder is free: 50 frames of 12.2 kbit/s, whose bits any decoder takes, twice with a header."""
    frames = np.random.default_rng(0).integers(0, 256, (50, 32), dtype=np.uint8)
    frames[:, 0] = 0x3C
    part = b"#!AMR\n" + frames.tobytes()
    (tmp_path / "voice.amr").write_bytes(part + part)
    track = probe_recording(tmp_path / "voice.amr")
    assert (track.rate, track.frames, track.warning) == (8_000, 100 * 160, "")
    assert track.note.startswith("2 files joined into one")
