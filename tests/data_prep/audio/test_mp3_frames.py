"""MP3 files that were joined, and MP3 without a header: every frame is read, and the number of frames is right."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio import mp3_frames
from overtone.data_prep.audio.file_view import FilePart
from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.stream_reader import open_stream
from tests.data_prep.audio.encoded_parts import chirp, encode

RATE = 44_100
DELAY = 529
"""Samples that every decoder of layer III puts first; libmpg123 skips its own if it knows the number of frames."""
BARE = {"write_xing": "0", "id3v2_version": "0"}


def make_id3(size: int) -> bytes:
    """A tag with a picture of noise, in which frames could be found."""
    body = b"APIC" + np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    return b"ID3\x03\0\0" + bytes(len(body) >> shift & 127 for shift in (21, 14, 7, 0)) + body


ID3V1 = b"TAG" + b"Title".ljust(125, b"\0")
APE = b"APETAGEX" + b"".join(value.to_bytes(4, "little") for value in (2000, 132, 1, 0xA0000000)) + bytes(8 + 100) + bytes(32)
APE = APE[:-32] + b"APETAGEX" + b"".join(value.to_bytes(4, "little") for value in (2000, 132, 1, 0x80000000)) + bytes(8)
JUNK = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8).tobytes()
PARTS = {
    "one": (1.6, RATE, 1, None),
    "two": (1.2, RATE, 1, None),
    "stereo": (1.2, RATE, 2, None),
    "slow": (1.2, 22_050, 1, None),
    "bare": (1.2, RATE, 1, BARE),
    "bare slow": (1.2, 22_050, 1, BARE),
}


@pytest.fixture(scope="module")
def parts() -> dict[str, bytes]:
    made = {
        name: encode("mp3", "libmp3lame", chirp(seconds, rate, channels, 300 + 200 * number), rate, options)
        for number, (name, (seconds, rate, channels, options)) in enumerate(PARTS.items())
    }
    return made | {
        "picture": make_id3(70_000),
        "other picture": make_id3(3_000),
        "tag": ID3V1,
        "ape": APE,
        "junk": JUNK,
        "zeros": bytes(3000),
    }


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    with AudioDecoder(tmp_path_factory.mktemp("decoder")) as one:
        yield one


def join(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def read(path: Path) -> np.ndarray:
    return np.concatenate(list(open_stream(path).blocks))


@pytest.mark.parametrize(
    "names",
    [
        "one,two",
        "picture,one,tag,other picture,two,ape,tag",
        "one,two,one,two",
        "one,stereo",
        "one,zeros,two,zeros",
        "one,junk,two",
        "tag,one,ape,two",
        "junk,one",
    ],
)
def test_joined_files_with_headers_and_tags_are_their_samples(names: str, parts, tmp_path: Path, decoder) -> None:
    """libmpg123 decodes each file by itself: without the encoder's delay, and without its padding."""
    path = join(tmp_path / "all.mp3", *(parts[name] for name in names.split(",")))
    sounds = [soundfile.read(io.BytesIO(parts[name]), dtype="float32", always_2d=True)[0] for name in names.split(",") if name in PARTS]
    found = read(path)
    expected = np.concatenate([np.repeat(sound, found.shape[1] // sound.shape[1], axis=1) for sound in sounds])
    assert np.array_equal(found, expected)
    track = decoder.probe(path)
    assert (track.frames, track.warning) == (len(expected), "")
    assert ("joined" in track.note) == (len(sounds) > 1)


def count_frames(data: bytes) -> int:
    """Frames by FFmpeg's parser."""
    with av.open(io.BytesIO(data), format="mp3") as file:
        return sum(packet.size > 0 for packet in file.demux(audio=0))


@pytest.mark.parametrize("names", ["bare", "one,bare", "bare,two", "bare,bare", "bare,bare slow", "bare slow,one", "picture,bare,tag"])
def test_files_without_a_header_are_read_to_the_last_frame(names: str, parts, tmp_path: Path, decoder) -> None:
    path = join(tmp_path / "bare.mp3", *(parts[name] for name in names.split(",")))
    seconds = 0.0
    for name in names.split(","):
        if name in PARTS:
            duration, rate, _, options = PARTS[name]
            bare = (count_frames(parts[name]) * (1152 if rate > 24_000 else 576) - DELAY) / rate
            seconds += duration if options is None else bare
    if names == "bare,bare":  # nothing shows where the second begins
        seconds += DELAY / RATE
    track = decoder.probe(path)
    assert track.frames / track.rate == pytest.approx(seconds, abs=0.001)
    assert track.warning == ""
    loaded, _ = decoder.load(path, track)
    assert loaded.seconds == pytest.approx(seconds, abs=0.001)


@pytest.mark.parametrize("bit_rates", [(320_000, 32_000), (32_000, 320_000)])
def test_changing_bit_rates_without_a_header_are_no_damage(bit_rates, tmp_path: Path, decoder) -> None:
    """An estimate from the first frames says too little, where libsndfile would stop, or too much, which was reported as truncated."""
    pieces = []
    for number, bits in enumerate(bit_rates):
        target = io.BytesIO()
        with av.open(target, "w", format="mp3", options=BARE) as file:
            stream = file.add_stream("libmp3lame", rate=RATE, layout="mono")
            stream.bit_rate = bits
            samples = chirp(1.0 + 3 * number, RATE)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, 0
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                file.mux(packet)
        pieces.append(target.getvalue())
    frames = sum(map(count_frames, pieces))
    track = decoder.probe(join(tmp_path / "vbr.mp3", *pieces))
    assert (track.frames, track.warning, track.note) == (frames * 1152 - DELAY, "", "")


def test_a_header_that_counts_too_many_frames_is_a_truncated_file(parts, tmp_path: Path, decoder) -> None:
    track = decoder.probe(join(tmp_path / "cut.mp3", parts["one"][: len(parts["one"]) // 2]))
    assert track.warning.startswith("truncated: the file declares 1.60 s and holds 0.")
    joined = decoder.probe(join(tmp_path / "all.mp3", parts["one"][: len(parts["one"]) // 2], parts["picture"], parts["two"]))
    assert joined.warning.startswith("part 1 of 2: truncated: the file declares 1.60 s and holds 0.")
    assert joined.frames / RATE == pytest.approx(track.frames / RATE + 1.2, abs=0.03)


def test_what_follows_the_frames_and_is_no_tag_is_mentioned(parts, tmp_path: Path, decoder) -> None:
    wav = b"RIFF" + bytes(20_000)
    track = decoder.probe(join(tmp_path / "more.mp3", parts["one"], ID3V1, wav))
    note = "20,004 bytes after the end of its sound are not read: perhaps a file of another format was joined to it"
    assert (track.frames / RATE, track.warning, track.note) == (pytest.approx(1.6), "", note)


@pytest.mark.parametrize(("codec", "layer"), [("mp2", 2), ("libmp3lame", 3)])
def test_the_walk_finds_the_frames_that_ffmpeg_finds(codec: str, layer: int, tmp_path: Path) -> None:
    for rate in (48_000, 32_000, 24_000, 16_000):
        data = encode("mp2" if codec == "mp2" else "mp3", codec, chirp(1.0, rate, 2), rate, None if codec == "mp2" else BARE)
        path = join(tmp_path / "a.mp3", data)
        with FilePart(path, 0, len(data)).open() as file:
            (found,) = mp3_frames._Walk(file, len(data), lambda: None).list_parts()
        assert (found.frames, found.stop) == (count_frames(data), len(data))
        assert (found.format.rate, found.format.layer, found.format.is_mono) == (rate, layer, False)


def test_layer_two_changes_its_format(tmp_path: Path, decoder) -> None:
    data = [encode("mp2", "mp2", chirp(1.0, rate, channels), rate) for rate, channels in ((48_000, 1), (24_000, 2))]
    track = decoder.probe(join(tmp_path / "a.mp2", *data))
    assert track.frames / track.rate == pytest.approx(
        sum(count_frames(one) * 1152 / rate for one, rate in zip(data, (48_000, 24_000), strict=True)), abs=0.001
    )
    assert (track.rate, len(track.weights), track.warning) == (48_000, 2, "")


@pytest.mark.parametrize("content", [b"", b"\xff", b"\xff\xfb\x90", bytes(range(256)) * 40, b"ID3", b"ID3\x03\0\0\x7f\x7f\x7f\x7f", JUNK])
def test_other_bytes_are_no_mp3(content: bytes, tmp_path: Path) -> None:
    part = FilePart(join(tmp_path / "a.mp3", content), 0, len(content))
    assert not mp3_frames.is_mp3(part)
    assert not mp3_frames.is_cut_mp3(part)
    assert mp3_frames.find_parts(part, lambda: None) == []
