"""Files of every format, opened without an external program."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from data_prep import formats
from data_prep.audio import EXTENSIONS, MASTER_RATE, AudioError, load, probe, read
from tests.data_prep.conftest import peak_frequency


def tone(rate: int, seconds: float = 2.0, frequency: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


@pytest.mark.parametrize("name", ["slt/kitchen.mp3", "rms/railway.ogg", "slt/harbour.flac", "rms/workshop.wav"])
def test_decoding_in_blocks_is_decoding(name, sample) -> None:
    """A decoder that is set back at each block leaves faults there: in this MP3 up to 7e-4 of full scale, and complaints of libmpg123."""
    whole = soundfile.read(sample / name, dtype="float32", always_2d=True)[0]
    blocks = list(formats.open_stream(sample / name).blocks)
    assert len(blocks) > 10
    assert np.abs(np.concatenate(blocks) - whole).max() < 1e-5


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "ogg", "opus", "aiff", "m4a"])
def test_formats_decode_without_an_external_program(ending, tmp_path, write_sound, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    path = write_sound(tmp_path / f"tone.{ending}", tone(48000), 48000)
    sound = load(path, probe(path), MASTER_RATE)[0]
    assert sound.seconds == pytest.approx(2.0, abs=0.06)
    assert peak_frequency(sound.samples, MASTER_RATE, 440) == pytest.approx(440, abs=0.5)


def test_names_may_hold_anything(tmp_path, write_sound) -> None:
    for name in ("with space", 'it\'s "quoted"', "голос", "声音", "-rf $(x) %s", "a.b.c"):
        path = write_sound(tmp_path / f"{name}.wav", tone(16000, 0.5), 16000)
        assert read(path, MASTER_RATE).seconds == 0.5
        path = write_sound(tmp_path / f"{name}.m4a", tone(16000, 0.5), 16000)
        assert read(path, MASTER_RATE).seconds == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("ending", EXTENSIONS)
def test_garbage_is_unreadable_under_any_name(ending, tmp_path) -> None:
    assert len(EXTENSIONS) == 11
    for content in (bytes(range(256)) * 40, b"", b"RIFF", b"fLaC" + bytes(100), b"ID3" + bytes(100), b"OggS" + bytes(100)):
        (tmp_path / f"bad{ending}").write_bytes(content)
        with pytest.raises(AudioError) as caught:
            probe(tmp_path / f"bad{ending}")
        assert caught.value.reason == "unreadable"


def test_a_wav_that_was_piped_declares_no_length(tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "piped.wav", tone(16000), 16000)
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    assert probe(path).warning == ""


@pytest.mark.parametrize("playlist", ["#EXTM3U\n#EXTINF:5,\n{}\n", "ffconcat version 1.0\nfile {}\n"])
def test_a_playlist_opens_nothing(playlist, tmp_path, write_sound) -> None:
    write_sound(tmp_path / "other.m4a", tone(16000), 16000)
    (tmp_path / "list.m4a").write_text(playlist.format("other.m4a"))
    with pytest.raises(AudioError, match="unreadable"):
        formats.open_stream(tmp_path / "list.m4a")


def header(rate: int, channels: int) -> bytes:
    """Of a WAV file with one second of sound."""
    frame = 2 * channels
    fields = [(16, 4), (1, 2), (channels, 2), (rate, 4), (rate * frame, 4), (frame, 2), (16, 2)]
    data = bytes(frame) * 1000
    return (
        b"".join(
            [b"RIFF", (36 + len(data)).to_bytes(4, "little"), b"WAVEfmt ", *(value.to_bytes(size, "little") for value, size in fields)]
        )
        + b"data"
        + len(data).to_bytes(4, "little")
        + data
    )


@pytest.mark.parametrize(
    ("rate", "channels", "detail"), [(1, 1, "says 1 Hz"), (900_000, 1, "says 900000 Hz"), (16000, 100, "100 channels")]
)
def test_a_header_that_cannot_be_true_is_refused(rate, channels, detail, tmp_path) -> None:
    (tmp_path / "odd.wav").write_bytes(header(rate, channels))
    with pytest.raises(AudioError, match=detail) as caught:
        formats.open_stream(tmp_path / "odd.wav")
    assert caught.value.reason == "unreadable"


def test_what_the_system_will_not_read_says_why(tmp_path) -> None:
    (tmp_path / "loop.wav").symlink_to(tmp_path / "loop.wav")
    (tmp_path / "folder.wav").mkdir()
    for name, detail in {"absent.wav": "No such file", "loop.wav": "Too many levels", "folder.wav": "Is a directory"}.items():
        with pytest.raises(AudioError, match=f"unreadable: it cannot be read: {detail}"):
            formats.open_stream(tmp_path / name)
