"""Files that several were joined into (`cat a b`) are read to their end: the samples are those of each file, decoded by itself."""

from __future__ import annotations

import io
import re
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio import joined_files
from overtone.data_prep.audio.decoded_stream import AudioError
from overtone.data_prep.audio.file_view import FilePart
from overtone.data_prep.audio.stream_reader import open_stream
from overtone.data_prep.audio.waveform import probe_recording
from tests.data_prep.audio.encoded_parts import chirp, encode

CONTAINERS = {
    "flac": ("flac", "flac"),
    "opus": ("ogg", "libopus"),
    "ogg": ("ogg", "vorbis"),
    "oga": ("ogg", "flac"),
    "wav": ("wav", "pcm_s16le"),
    "rf64": ("rf64", "pcm_s16le"),
    "aiff": ("aiff", "pcm_s16be"),
    "au": ("au", "pcm_s16be"),
    "caf": ("caf", "pcm_s16le"),
    "w64": ("w64", "pcm_s16le"),
    "mka": ("matroska", "pcm_s16le"),
    "webm": ("webm", "libopus"),
    "m4a": ("ipod", "alac"),
    "mp4": ("mp4", "aac"),
    "tta": ("tta", "tta"),
    "wv": ("wv", "wavpack"),
    "wma": ("asf", "wmav2"),
    "flv": ("flv", "aac"),
    "avi": ("avi", "pcm_s16le"),
}
QUICK = ("flac", "opus", "ogg", "wav", "m4a")
OTHER_RATE = {"opus": 48_000, "webm": 48_000}
"""Opus is decoded at one rate only; the others change to 32 kHz. Their conversion is the same code: `QUICK` has one of each decoder."""


def encode_part(name: str, rate: int, channels: int, start: float) -> bytes:
    container, codec = CONTAINERS[name]
    samples = chirp(1.5, rate, channels, start)
    if codec == "vorbis" or container == "rf64":
        target = io.BytesIO()
        soundfile.write(
            target, samples, rate, format="OGG" if codec == "vorbis" else "RF64", subtype="VORBIS" if codec == "vorbis" else "PCM_16"
        )
        return target.getvalue()
    return encode(container, codec, samples, rate)


def read(path: Path) -> tuple[np.ndarray, int]:
    """Samples [n, channels] and their rate."""
    stream = open_stream(path)
    return np.concatenate(list(stream.blocks)), stream.rate


def write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("name", CONTAINERS)
def test_joined_files_of_one_format_are_their_samples(name: str, tmp_path: Path) -> None:
    parts = [encode_part(name, 48_000, 1, start) for start in (300, 900, 1500)]
    singles = [read(write(tmp_path / f"{number}.{name}", part))[0] for number, part in enumerate(parts)]
    assert all(abs(len(single) / 48_000 - 1.5) < 0.07 for single in singles)
    path = write(tmp_path / f"all.{name}", *parts)
    assert np.array_equal(read(path)[0], np.concatenate(singles))
    track = probe_recording(path)
    assert track.warning == ""
    assert track.note.startswith("3 files joined into one, all read (the next begin at 1.5")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CONTAINERS])
def test_a_part_of_another_format_is_converted(name: str, tmp_path: Path) -> None:
    """To the larger rate and number of channels, so that nothing is lost of either part."""
    rate = OTHER_RATE.get(name, 32_000)
    first, second = encode_part(name, 48_000, 1, 300), encode_part(name, rate, 2, 900)
    one, two = (read(write(tmp_path / f"{number}.{name}", part))[0] for number, part in enumerate((first, second)))
    for order in ((first, second), (second, first)):
        found, at = read(write(tmp_path / f"all.{name}", *order))
        assert (at, found.shape[1]) == (48_000, 2)
        assert abs(len(found) / 48_000 - len(one) / 48_000 - len(two) / rate) < 0.001
        mono = found[: len(one)] if order[0] is first else found[-len(one) :]
        assert np.array_equal(mono[:, 0], one[:, 0]) and np.array_equal(mono[:, 0], mono[:, 1])
        stereo = found[len(one) :] if order[0] is first else found[: -len(one)]
        assert stereo[5000:-5000].std(axis=0) == pytest.approx(two[4000:-4000].std(axis=0), rel=0.02)
    note = probe_recording(tmp_path / f"all.{name}").note
    assert "converted to 48000 Hz and 2 channels: part " in note and "part 2 of 2 from 48000 Hz and 1 channel" in note


@pytest.mark.parametrize(("container", "codec"), [("adts", "aac"), ("ac3", "ac3")])
def test_streams_without_a_header_are_read_to_the_end(container: str, codec: str, tmp_path: Path) -> None:
    one, two = encode(container, codec, chirp(1.5, 48_000), 48_000), encode(container, codec, chirp(1.5, 48_000, 1, 900), 48_000)
    tag = b"ID3\x03\0\0\0\0\0\x64" + bytes(100) if codec == "aac" else b""
    path = write(tmp_path / f"all.{codec}", one, tag, two)
    with av.open(str(path)) as file:
        expected = sum(frame.samples for frame in file.decode(audio=0))
    assert abs(len(read(path)[0]) - expected) <= 1024  # the first frame of raw AAC has no sound
    assert expected / 48_000 == pytest.approx(3, abs=0.1)
    assert probe_recording(path).warning == ""


def test_ogg_links_have_their_own_delay_and_end(tmp_path: Path) -> None:
    """Three links of Opus, decoded by libsndfile one by one: it skips 6.5 ms of each, and cuts the last packet."""
    parts = [encode_part("opus", 48_000, 1, start) for start in (300, 900, 1500)]
    expected = np.concatenate([soundfile.read(io.BytesIO(part), dtype="float32")[0] for part in parts])
    found = read(write(tmp_path / "all.opus", *parts))[0][:, 0]
    assert len(found) == len(expected) == 3 * 72_000
    assert np.abs(found - expected).max() < 1e-3


def test_a_damaged_part_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    parts = [encode_part("flac", 48_000, 1, start) for start in (300, 900, 1500)]
    cut = parts[1][: len(parts[1]) // 2]
    track = probe_recording(write(tmp_path / "cut.flac", parts[0], cut, parts[2]))
    assert track.warning.startswith("part 2 of 3: ")
    assert 3.0 < track.frames / track.rate < 4.4
    broken = parts[1][:60] + bytes(200)
    track = probe_recording(write(tmp_path / "broken.flac", parts[0], broken, parts[2]))
    assert track.warning.startswith("part 2 of 3")
    assert track.frames / track.rate == pytest.approx(3.0, abs=0.1)


def test_a_file_of_which_no_part_can_be_decoded_is_unreadable(tmp_path: Path) -> None:
    head = encode_part("caf", 48_000, 1, 300)[:40]
    with pytest.raises(AudioError, match="unreadable"):
        probe_recording(write(tmp_path / "bad.caf", head, head))


def test_a_tag_between_two_files_belongs_to_none(tmp_path: Path) -> None:
    """A FLAC that was written to a pipe declares no length, so that its decoder would read the tag."""
    tag = b"ID3\x04\0\0\0\0\x02\x00" + bytes(range(256))
    parts = [encode_part("flac", 48_000, 1, start) for start in (300, 900)]
    piped = parts[0][:21] + bytes([parts[0][21] & 0xF0, 0, 0, 0, 0]) + parts[0][26:]
    track = probe_recording(write(tmp_path / "tagged.flac", tag, piped, tag, parts[1]))
    assert (track.frames, track.warning) == (2 * 72_000, "")


@pytest.mark.parametrize("rest", [b"TAG" + bytes(125), bytes(5000), bytes(range(256)) * 20])
def test_bytes_after_the_end_of_a_flac_cost_none_of_its_samples(rest: bytes, tmp_path: Path) -> None:
    """Its decoder would take them for a damaged frame, and lose the block before."""
    parts = [encode_part("flac", 48_000, 1, start) for start in (300, 900)]
    for number in (1, 2):
        found, _ = read(path := write(tmp_path / f"{number}.flac", *(part + rest for part in parts[:number])))
        assert np.array_equal(found, np.concatenate([read(write(tmp_path / "one", part))[0] for part in parts[:number]]))
        assert probe_recording(path).warning == ""


@pytest.mark.parametrize("name", ["flac", "opus", "wav", "m4a", "mka"])
def test_a_joined_file_of_another_format_is_mentioned(name: str, tmp_path: Path) -> None:
    first, other = encode_part(name, 48_000, 1, 300), encode_part("flac" if name != "flac" else "opus", 48_000, 1, 900)
    alone = probe_recording(write(tmp_path / f"alone.{name}", first))
    track = probe_recording(write(tmp_path / f"both.{name}", first, other))
    assert (track.frames, track.warning) == (alone.frames, "") and alone.note == ""
    assert re.fullmatch(r"[\d,]+ bytes after .* are not read.*", track.note)


def test_padding_between_two_mp4_files_hides_none(tmp_path: Path) -> None:
    """A box of length 0 lasts to the end of the file, but padding is no box."""
    parts = [encode_part("m4a", 48_000, 1, start) for start in (300, 900)]
    track = probe_recording(write(tmp_path / "padded.m4a", parts[0], bytes(5000), parts[1]))
    assert track.frames == pytest.approx(2 * 72_000, abs=4096)
    assert track.note.startswith("2 files joined into one")


def test_a_truncated_first_wav_hides_no_other(tmp_path: Path) -> None:
    """Its header declares more than there is, so that its end is unknown."""
    parts = [encode_part("wav", 48_000, 1, start) for start in (300, 900)]
    track = probe_recording(write(tmp_path / "cut.wav", parts[0][:-48_000], parts[1]))
    assert track.frames == 2 * 72_000 - 24_000
    assert track.warning == "part 1 of 2: truncated: the file declares 1.50 s and holds 1.00 s"


def test_bytes_that_no_chunk_describes_are_mentioned(tmp_path: Path) -> None:
    wav = encode_part("wav", 48_000, 1, 300)
    track = probe_recording(write(tmp_path / "more.wav", wav, bytes(48_000)))
    assert (track.frames, track.warning) == (72_000, "")
    assert track.note == "48,000 bytes after the 1.50 s that the header describes are not read"
    assert probe_recording(write(tmp_path / "tagged.wav", wav, b"TAG" + bytes(125))).note == ""


def test_a_wav_whose_recorder_wrote_no_length_is_read_to_its_end(tmp_path: Path) -> None:
    wav = bytearray(encode_part("wav", 48_000, 1, 300))
    at = wav.index(b"data") + 4
    wav[4:8] = wav[at : at + 4] = bytes(4)
    for parts in (1, 2):
        track = probe_recording(write(tmp_path / "crashed.wav", *[bytes(wav)] * parts))
        assert (track.frames, track.warning) == (parts * 72_000, "")
    with pytest.raises(AudioError, match="empty: no samples in the file"):
        probe_recording(write(tmp_path / "empty.wav", bytes(wav[: at + 4])))


def test_chained_ogg_without_an_end_page_is_said(tmp_path: Path) -> None:
    one, two = encode_part("opus", 48_000, 1, 300), encode_part("opus", 48_000, 1, 900)
    cut = one[: one.rfind(b"OggS")]
    assert probe_recording(write(tmp_path / "cut.opus", cut, two)).warning.startswith(
        "part 1 of 2: truncated: the file ends before its audio"
    )


def test_a_search_covers_every_place_and_reads_what_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature across two chunks is found; where sizes are known, nothing is searched."""
    part = encode_part("flac", 48_000, 1, 300)
    for place in range(joined_files.CHUNK - 50, joined_files.CHUNK + 10, 3):
        path = write(tmp_path / "a.flac", part[:42], bytes(place - 42), part)
        found = joined_files.find_parts(FilePart(path, 0, path.stat().st_size), lambda: None)
        assert [one.start for one in found] == [0, place]
    monkeypatch.setattr(joined_files, "_search", lambda *_: pytest.fail("searched"))
    for name in ("wav", "m4a", "mka"):
        path = write(tmp_path / f"a.{name}", encode_part(name, 48_000, 1, 300))
        monkeypatch.setattr(
            joined_files, "_search", lambda _file, _signature, start, size, _alive: None if start == size else pytest.fail("no")
        )
        assert len(joined_files.find_parts(FilePart(path, 0, path.stat().st_size), lambda: None)) == 1
