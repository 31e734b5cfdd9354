"""Damaged and unusual recordings through scan and decoder: each is used or refused with a reason, and the next one is decoded."""

from __future__ import annotations

import os
import random
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.waveform import EXTENSIONS, MASTER_RATE, SPEECH_RATE, AudioError
from overtone.data_prep.recordings.recording_files import find_recordings
from tests.data_prep.audio.test_stream_reader import encode
from tests.ledger import record

REASONS = {"unreadable", "empty", "nan", "silent", "too_long", "decoder_crashed", "decoder_stalled"}
EXTREMES = (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x00\x00\x00", b"\x01\x00\x00\x00")


def damaged(content: bytes, chance: random.Random) -> bytes:
    """One to three random injuries, half of them in the header."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        reach = min(len(data), chance.choice((64, 512, len(data), len(data))))
        at = chance.randrange(max(reach, 1))
        length = chance.choice((1, 4, 32, 1000))
        match chance.choice(("byte", "number", "noise", "hole", "cut", "insert", "repeat", "swap")):
            case "byte":
                data[at : at + 1] = bytes([chance.randrange(256)])
            case "number":
                data[at : at + 4] = chance.choice(EXTREMES)
            case "noise":
                data[at : at + length] = chance.randbytes(length)
            case "hole":
                data[at : at + length] = bytes(length)
            case "cut":
                del data[chance.randrange(len(data) + 1) :]
            case "insert":
                data[at:at] = chance.randbytes(length)
            case "repeat":
                data[at:at] = data[at : at + length]
            case "swap":
                other = chance.randrange(len(data) + 1)
                data[at : at + length], data[other : other + length] = data[other : other + length], data[at : at + length]
        if not data:
            break
    return bytes(data)


def what_becomes_of(path: Path, decoder: AudioDecoder) -> str:
    """`decoded`, or the reason; fails for anything else."""
    try:
        track = decoder.probe(path)
        sounds = decoder.load(path, track)
    except AudioError as error:
        assert error.detail
        return error.reason
    for sound, rate in zip(sounds, (MASTER_RATE, SPEECH_RATE), strict=True):
        assert sound.rate == rate
        assert np.isfinite(sound.samples).all()
    assert len(sounds[0].samples) == track.length
    return "decoded"


@pytest.fixture(scope="module")
def originals(tmp_path_factory, railway) -> dict[str, Path]:
    """A second of speech in every format."""
    folder = tmp_path_factory.mktemp("originals")
    return {ending: encode(folder / f"sound{ending}", railway.samples[12000:36000, None], MASTER_RATE) for ending in EXTENSIONS}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Iterator[AudioDecoder]:
    with AudioDecoder(tmp_path_factory.mktemp("samples")) as one:
        yield one


def fates(originals: dict[str, Path], each: int, folder: Path, seed: int) -> Iterator[tuple[str, str]]:
    """Ending and fate of `each` injured files per format; one decoder for all of them, and an intact file now and then."""
    chance = random.Random(seed)
    with AudioDecoder(folder / "samples") as decoder:
        for number in range(each):
            for ending, original in originals.items():
                path = folder / f"{number}{ending}"
                path.write_bytes(damaged(original.read_bytes(), chance))
                yield ending, what_becomes_of(path, decoder)
                path.unlink()
            assert what_becomes_of(originals[".flac"], decoder) == "decoded"
        assert list((folder / "samples").iterdir()) == []


def check_fates(seen: list[tuple[str, str]], least: int) -> None:
    counts = Counter(fate for _, fate in seen)
    assert len(seen) >= least
    assert set(counts) <= REASONS | {"decoded"}
    stalled = counts["decoder_stalled"]
    record("a damaged file is decoded to finite samples or refused with its reason; no crash, no stall", len(seen), stalled)
    assert counts["decoded"] > least // 10
    assert counts["unreadable"] > least // 20


def test_damaged_files_are_decoded_or_refused_without_a_crash(originals, tmp_path) -> None:
    check_fates(list(fates(originals, 6, tmp_path, seed=1)), least=60)


@pytest.mark.slow
def test_many_damaged_files_are_decoded_or_refused_without_a_crash(originals, tmp_path) -> None:
    check_fates(list(fates(originals, 100, tmp_path, seed=2)), least=1000)


def test_bad_recordings_are_each_refused_with_their_reason(tmp_path, railway, decoder) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    speech = railway.samples[12000:36000]
    constant, broken, endless = np.full_like(speech, 0.3), speech.copy(), speech.copy()
    broken[5], endless[5] = np.nan, np.inf
    soundfile.write(folder / "zeros.flac", 0 * speech, MASTER_RATE)
    soundfile.write(folder / "constant.wav", constant, MASTER_RATE)
    soundfile.write(folder / "no frames.wav", speech[:0], MASTER_RATE)
    soundfile.write(folder / "nan.wav", broken, MASTER_RATE, subtype="FLOAT")
    soundfile.write(folder / "inf.wav", endless, MASTER_RATE, subtype="FLOAT")
    soundfile.write(folder / 'good "one"\n голос.wav', speech, MASTER_RATE)
    (folder / "nothing.mp3").touch()
    (folder / "garbage.ogg").write_bytes(random.Random(0).randbytes(5000))
    (folder / "page.m4a").write_text("<html>404 Not Found</html>")
    (folder / "circle.wav").symlink_to("circle.wav")
    os.mkfifo(folder / "pipe.wav")
    film(folder / "silent film.webm")
    sources = find_recordings(folder, "me", skip=tmp_path / "out")
    assert {source.name: "problem" if source.problem else what_becomes_of(source.path, decoder) for source in sources} == {
        "zeros.flac": "silent",
        "constant.wav": "silent",
        "no frames.wav": "empty",
        "nan.wav": "nan",
        "inf.wav": "nan",
        'good "one"\n голос.wav': "decoded",
        "nothing.mp3": "unreadable",
        "garbage.ogg": "unreadable",
        "page.m4a": "unreadable",
        "circle.wav": "problem",
        "pipe.wav": "problem",
        "silent film.webm": "unreadable",
    }


def film(path: Path) -> None:
    """Pictures without sound."""
    import av

    with av.open(str(path), "w", format="webm") as file:
        stream = file.add_stream("libvpx", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        file.mux(stream.encode(None))


CANNOT_TELL = {".m4a": "unreadable"}
"""What a half of it is; m4a has its table of contents at the end. The others are decoded, with a warning."""


@pytest.mark.parametrize("ending", EXTENSIONS)
def test_half_a_file_is_decoded_with_a_warning(ending, tmp_path, railway, decoder) -> None:
    assert len(EXTENSIONS) == 11
    path = encode(tmp_path / f"half{ending}", railway.samples[: 6 * MASTER_RATE, None], MASTER_RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if ending in CANNOT_TELL:
        with pytest.raises(AudioError, match=CANNOT_TELL[ending]):
            decoder.probe(path)
        return
    track = decoder.probe(path)
    assert track.warning.startswith(
        ("truncated: the file", "decoding stopped after", "damaged: pieces dropped because they cannot be decoded: 1, ")
    )
    master, _ = decoder.load(path, track)
    assert 1.0 < master.seconds < 5.0


@pytest.mark.parametrize("ending", [".aac", ".m4a", ".mp3", ".wma"])
def test_a_damaged_middle_loses_no_more_than_itself(ending, tmp_path, railway, decoder) -> None:
    path = encode(tmp_path / f"hole{ending}", railway.samples[: 6 * MASTER_RATE, None], MASTER_RATE)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 500] = random.Random(0).randbytes(500)
    path.write_bytes(data)
    track = decoder.probe(path)
    assert track.warning or "of silence where its packets pause or are lost" in track.note
    assert decoder.load(path, track)[0].seconds > 5.0


def sparse_wav(path: Path, hours: float, rate: int = 8000, heard: np.ndarray | None = None) -> Path:
    """8 bits a sample, mostly a hole in the file; with sound at its end."""
    size = round(hours * 3600 * rate)
    fields = [(16, 4), (1, 2), (1, 2), (rate, 4), (rate, 4), (1, 2), (8, 2)]
    with path.open("wb") as file:
        file.write(b"RIFF" + (36 + size).to_bytes(4, "little") + b"WAVEfmt ")
        file.write(b"".join(value.to_bytes(width, "little") for value, width in fields))
        file.write(b"data" + size.to_bytes(4, "little"))
        file.truncate(44 + size)
        if heard is not None:
            file.seek(44 + size - len(heard))
            file.write((128 + np.rint(heard * 127)).astype(np.uint8).tobytes())
    return path


def test_more_than_a_day_in_one_file_is_refused_at_once(tmp_path, decoder) -> None:
    with pytest.raises(AudioError, match="100.0 h or more in one file; split it") as caught:
        decoder.probe(sparse_wav(tmp_path / "days.wav", 100))
    assert caught.value.reason == "too_long"


@pytest.mark.slow
def test_ten_hours_take_little_memory(tmp_path, railway) -> None:
    """Six gigabytes of samples, mapped: neither process grows by more than a small part of them."""
    import soxr

    heard = soxr.resample(railway.samples, MASTER_RATE, 8000, quality="VHQ")
    path = sparse_wav(tmp_path / "ten hours.wav", 10, heard=heard)
    before, others = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, set(psutil.Process().children())
    with AudioDecoder(tmp_path / "samples") as decoder:
        track = decoder.probe(path)
        master, hearing = decoder.load(path, track)
        (child,) = [one for one in psutil.Process().children() if one not in others]
        peak = int(Path(f"/proc/{child.pid}/status").read_text().split("VmHWM:")[1].split()[0])
        samples = (len(master.samples) + len(hearing.samples)) * 4 / 2**30
    assert (master.seconds, hearing.seconds) == (36_000, 36_000)
    assert master.samples[-20 * MASTER_RATE :].std() > 0.01
    assert peak < 300 * 1024
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 * 1024
    record("ten hours in one file take little memory", 1, 0, f"{max(peak, grown) / 1024:.0f} MiB for {samples:.1f} GiB of samples")
