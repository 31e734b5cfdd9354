"""Files of every supported format are decoded without an external program."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.audio import stream_reader
from overtone.data_prep.audio.waveform import (
    EXTENSIONS,
    MASTER_RATE,
    SPEECH_RATE,
    Audio,
    AudioError,
    load_track,
    probe_recording,
    read_audio,
)
from overtone.data_prep.segmentation.vad import find_speech
from tests.data_prep.conftest import peak_frequency
from tests.ledger import record


def tone(rate: int, seconds: float = 2.0, frequency: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


@pytest.mark.parametrize("name", ["slt/kitchen.mp3", "rms/railway.ogg", "slt/harbour.flac", "rms/workshop.wav"])
def test_streaming_a_file_gives_its_samples(name, sample) -> None:
    """A decoder that is set back at each block leaves faults there: in this MP3 up to 7e-4 of full scale, and complaints of libmpg123."""
    whole = soundfile.read(sample / name, dtype="float32", always_2d=True)[0]
    blocks = list(stream_reader.open_stream(sample / name).blocks)
    assert len(blocks) > 10
    assert np.abs(np.concatenate(blocks) - whole).max() < 1e-5


STEP = 512 * MASTER_RATE // SPEECH_RATE
"""Samples by which the detector steps: what a codec changes may move an edge by one step."""


def lag(late: np.ndarray, early: np.ndarray) -> int:
    """Samples by which `late` lies behind `early`."""
    size = 1 << 18
    likeness = np.fft.irfft(np.fft.rfft(late, size) * np.fft.rfft(early, size).conj(), size)
    best = int(np.abs(likeness).argmax())  # of two opposite channels either may be taken
    return best if best < size // 2 else best - size


def limited(samples: np.ndarray, rate: int) -> np.ndarray:
    """What a recording at `rate` keeps of a sound at 24 kHz."""
    return soxr.resample(soxr.resample(samples, MASTER_RATE, rate, quality="VHQ"), rate, MASTER_RATE, quality="VHQ")


def at_speech_rate(samples: np.ndarray) -> Audio:
    return Audio(soxr.resample(samples, MASTER_RATE, SPEECH_RATE, quality="VHQ"), SPEECH_RATE)


CONTAINERS = {
    ".aac": ("adts", "aac"),
    ".aif": ("aiff", "pcm_s16be"),
    ".aiff": ("aiff", "pcm_s16be"),
    ".flac": ("flac", "flac"),
    ".m4a": ("ipod", "aac"),
    ".mp3": ("mp3", "libmp3lame"),
    ".opus": ("ogg", "libopus"),
    ".wav": ("wav", "pcm_s16le"),
    ".webm": ("webm", "libopus"),
    ".wma": ("asf", "wmav2"),
}
ANY_RATE = (8000, 16000, 22050, 24000, 44100, 48000, 96000)
RATES = {".mp3": ANY_RATE[:-1], ".wma": ANY_RATE[:-1], ".opus": (8000, 16000, 24000, 48000), ".webm": (8000, 16000, 24000, 48000)}
"""What the encoders take; the others take any."""


def encode(path: Path, channels: np.ndarray, rate: int) -> Path:
    """Write samples [n, channels] in the format of the name, with FFmpeg's encoders, Vorbis with libsndfile's."""
    if path.suffix == ".ogg":
        soundfile.write(path, channels, rate, format="OGG", subtype="VORBIS")
        return path
    return encode_as(*CONTAINERS[path.suffix], path, channels, rate)


def encode_as(container: str, codec: str, path: Path, channels: np.ndarray, rate: int) -> Path:
    """Write samples [n, channels] with FFmpeg's names for both."""
    import av

    layout = {1: "mono", 2: "stereo", 6: "5.1"}[channels.shape[1]]
    with av.open(str(path), "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        if codec == "wmav2":
            stream.bit_rate = 64_000
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels.T, np.float32), format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, 0  # without a time, MP4 gets no edit list, which says what the encoder put first
        fitting = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate)
        for piece in [*fitting.resample(frame), *fitting.resample(None), None]:
            file.mux(stream.encode(piece))
    return path


TONE_SECONDS = 2.0
MIXES = {
    "mono": lambda x: [x],
    "stereo": lambda x: [x, x],
    "anti-phase": lambda x: [x, -x],
    "left dead": lambda x: [0 * x, x],
    "right faint": lambda x: [x, 1e-3 * x],
}
EVERY = [(ending, rate, mix) for ending in (".ogg", *CONTAINERS) for rate in RATES.get(ending, ANY_RATE) for mix in MIXES]
QUICK = [
    (".aac", 44100, "stereo"),
    (".aif", 22050, "anti-phase"),
    (".aiff", 96000, "mono"),
    (".flac", 48000, "right faint"),
    (".m4a", 24000, "left dead"),
    (".mp3", 8000, "mono"),
    (".ogg", 16000, "stereo"),
    (".opus", 48000, "anti-phase"),
    (".wav", 24000, "left dead"),
    (".webm", 16000, "right faint"),
    (".wma", 22050, "mono"),
]


@pytest.fixture(scope="module")
def expected_regions(vad, one_sentence):
    """Of the sentence at a rate, without any format in between."""
    samples = one_sentence.samples
    return functools.cache(lambda rate: find_speech(vad, at_speech_rate(limited(samples, rate)), len(samples)))


def case(each: tuple[str, int, str]):
    return pytest.param(*each, id=" ".join(map(str, each)), marks=() if each in QUICK else pytest.mark.slow)


def test_quick_cases_have_every_format_rate_and_channel_mix() -> None:
    assert {ending for ending, _, _ in EVERY} == {ending for ending, _, _ in QUICK} == set(EXTENSIONS)
    assert {rate for _, rate, _ in QUICK} == set(ANY_RATE)
    assert {mix for _, _, mix in QUICK} == set(MIXES)


@pytest.mark.parametrize(("ending", "rate", "mix"), [case(each) for each in EVERY])
def test_every_format_keeps_speech_times_and_pitch(ending, rate, mix, vad, one_sentence, expected_regions, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")  # no external program
    said = one_sentence.samples
    spoken = soxr.resample(np.concatenate([said, np.zeros(MASTER_RATE // 2, np.float32)]), MASTER_RATE, rate, quality="VHQ")
    sound = np.concatenate([spoken, tone(rate, TONE_SECONDS)])
    path = encode(tmp_path / f"sound{ending}", np.stack(MIXES[mix](sound), axis=1), rate)
    track = probe_recording(path)
    master, hearing = load_track(path, track, MASTER_RATE, SPEECH_RATE)
    assert track.warning == ""
    assert 0 <= master.seconds - len(sound) / rate < 2 * 1024 / rate + 0.001  # the encoder's last frame is filled up
    late = abs(lag(master.samples[: len(said)], limited(said, rate)))
    found = find_speech(vad, hearing.cut(0, len(said) * SPEECH_RATE // MASTER_RATE), len(said))
    assert np.abs(np.subtract(found, expected_regions(rate))).max() <= STEP
    end = round(len(sound) / rate * MASTER_RATE)
    pitch = peak_frequency(master.samples[end - int((TONE_SECONDS - 0.1) * MASTER_RATE) : end - MASTER_RATE // 10], MASTER_RATE, 440)
    bent = abs(pitch - 440)
    record("11 formats, 7 rates, 5 kinds of channels: the sound lies within 1 ms of where it was", 1, int(late > MASTER_RATE // 1000))
    record("the same: 440 Hz come out within 0.5 Hz", 1, int(bent > 0.5))


ALSO = {
    "apple lossless.m4a": ("ipod", "alac", 44100, 1),
    "fragments.m4a": ("mp4", "aac", 44100, 1),
    "six channels.m4a": ("ipod", "aac", 48000, 6),
    "six channels.flac": ("flac", "flac", 48000, 6),
    "transport.aac": ("latm", "aac", 44100, 1),
    "telephone.wav": ("wav", "pcm_mulaw", 8000, 1),
    "adpcm.wav": ("wav", "adpcm_ima_wav", 22050, 1),
    "double.wav": ("wav", "pcm_f64le", 48000, 1),
    "24 bits.wav": ("wav", "pcm_s24le", 96000, 1),
    "8 bits.wav": ("wav", "pcm_u8", 16000, 1),
    "named otherwise.mp3": ("flac", "flac", 44100, 1),
    "plain.webm": ("matroska", "pcm_s16le", 44100, 1),
}


@pytest.mark.parametrize("name", ALSO)
def test_other_codecs_with_these_endings_are_decoded(name, one_sentence, tmp_path) -> None:
    container, codec, rate, channels = ALSO[name]
    said = soxr.resample(one_sentence.samples, MASTER_RATE, rate, quality="VHQ")
    path = encode_as(container, codec, tmp_path / name, np.stack([said] * channels, axis=1), rate)
    track = probe_recording(path)
    assert (track.rate, len(track.weights), track.warning) == (rate, channels, "")
    assert abs(lag(load_track(path, track, MASTER_RATE)[0].samples, limited(one_sentence.samples, rate))) <= MASTER_RATE // 1000


def test_file_names_may_contain_any_character(tmp_path, write_sound) -> None:
    for name in ("with space", 'it\'s "quoted"', "голос", "声音", "-rf $(x) %s", "a.b.c"):
        path = write_sound(tmp_path / f"{name}.wav", tone(16000, 0.5), 16000)
        assert read_audio(path, MASTER_RATE).seconds == 0.5
        path = write_sound(tmp_path / f"{name}.m4a", tone(16000, 0.5), 16000)
        assert read_audio(path, MASTER_RATE).seconds == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("ending", EXTENSIONS)
def test_garbage_is_unreadable_under_any_name(ending, tmp_path) -> None:
    assert len(EXTENSIONS) == 11
    for content in (bytes(range(256)) * 40, b"", b"RIFF", b"fLaC" + bytes(100), b"ID3" + bytes(100), b"OggS" + bytes(100)):
        (tmp_path / f"bad{ending}").write_bytes(content)
        with pytest.raises(AudioError) as caught:
            probe_recording(tmp_path / f"bad{ending}")
        assert caught.value.reason == "unreadable"


def test_a_piped_wav_without_a_length_is_read(tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "piped.wav", tone(16000), 16000)
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    assert probe_recording(path).warning == ""


@pytest.mark.parametrize("playlist", ["#EXTM3U\n#EXTINF:5,\n{}\n", "ffconcat version 1.0\nfile {}\n"])
def test_a_playlist_opens_nothing(playlist, tmp_path, write_sound) -> None:
    write_sound(tmp_path / "other.m4a", tone(16000), 16000)
    (tmp_path / "list.m4a").write_text(playlist.format("other.m4a"))
    with pytest.raises(AudioError, match="unreadable"):
        stream_reader.open_stream(tmp_path / "list.m4a")


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
def test_an_impossible_header_is_refused(rate, channels, detail, tmp_path) -> None:
    (tmp_path / "odd.wav").write_bytes(header(rate, channels))
    with pytest.raises(AudioError, match=detail) as caught:
        stream_reader.open_stream(tmp_path / "odd.wav")
    assert caught.value.reason == "unreadable"


def test_an_error_of_the_system_is_part_of_the_message(tmp_path) -> None:
    (tmp_path / "loop.wav").symlink_to(tmp_path / "loop.wav")
    (tmp_path / "folder.wav").mkdir()
    for name, detail in {"absent.wav": "No such file", "loop.wav": "Too many levels", "folder.wav": "Is a directory"}.items():
        with pytest.raises(AudioError, match=f"unreadable: cannot be read: {detail}"):
            stream_reader.open_stream(tmp_path / name)
