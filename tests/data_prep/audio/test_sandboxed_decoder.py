"""The decoder process: it gives the samples of in-process decoding, and it may crash, stall or grow without harm to its parent."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, AudioError, AudioLimits, load_track, probe_recording
from overtone.finetune.errors import UserError
from tests.data_prep.crafted_flac import flac as crafted


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    """Where the shared decoder puts its temporary samples."""
    return tmp_path_factory.mktemp("decoder") / "samples"


@pytest.fixture(scope="module")
def decoder(samples):
    """One child for most tests: none may leave it in a state in which the next one fails."""
    with AudioDecoder(samples) as one:
        yield one


@pytest.mark.parametrize("name", ["slt/kitchen.mp3", "rms/railway.ogg"])
def test_the_decoder_process_gives_bit_identical_samples(name, sample, decoder) -> None:
    track = decoder.probe(sample / name)
    assert track == probe_recording(sample / name)
    for theirs, ours in zip(decoder.load(sample / name, track), load_track(sample / name, track, MASTER_RATE, SPEECH_RATE), strict=True):
        assert theirs.rate == ours.rate
        assert np.array_equal(theirs.samples, ours.samples)


def test_one_child_serves_many_files_and_ends_with_its_owner(tmp_path, railway, write_sound) -> None:
    before = psutil.Process().children()
    with AudioDecoder(tmp_path / "samples") as decoder:
        for number in range(5):
            path = write_sound(tmp_path / f"{number}.wav", railway.samples[: 24000 * (number + 1)], 24000)
            master, hearing = decoder.load(path, decoder.probe(path))
            assert (master.seconds, hearing.seconds) == (number + 1, number + 1)
        (child,) = set(psutil.Process().children()) - set(before)
    assert not child.is_running()
    assert list((tmp_path / "samples").iterdir()) == []
    assert master.samples.std() > 0.01  # mapped, and yet there without the child and without a name


def test_writing_to_mapped_samples_changes_no_other_copy(railway, decoder, tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "a.wav", railway.samples[:24000], 24000)
    master, _ = decoder.load(path, decoder.probe(path))
    again, _ = decoder.load(path, decoder.probe(path))
    master.samples[:] = 1.0
    assert again.samples.max() < 1.0


def test_the_reasons_of_refused_files_reach_the_parent(tmp_path, write_sound, decoder) -> None:
    (tmp_path / "garbage.wav").write_bytes(bytes(range(256)) * 40)
    write_sound(tmp_path / "silent.flac", np.zeros(24000), 24000)
    for name, reason in {"garbage.wav": "unreadable", "silent.flac": "silent", "absent.wav": "unreadable"}.items():
        with pytest.raises(AudioError) as caught:
            decoder.probe(tmp_path / name)
        assert caught.value.reason == reason
    assert caught.value.detail == "cannot be read: No such file or directory"


def test_complaints_of_the_decoder_library_become_a_warning(tmp_path, sample, decoder, capfd) -> None:
    """Two bytes of an MP3 that change no length; most of such damage nobody can notice, this libmpg123 does."""
    data = bytearray((sample / "slt/kitchen.mp3").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2] = random.Random(2).randbytes(2)
    (tmp_path / "hole.mp3").write_bytes(data)
    assert decoder.probe(tmp_path / "hole.mp3").warning.startswith("the decoder says: ")
    assert decoder.probe(sample / "slt/kitchen.mp3").warning == ""
    assert capfd.readouterr().err == ""


def test_a_file_that_changes_between_the_passes_is_unreadable(tmp_path, railway, write_sound, decoder, samples) -> None:
    for ending, says in {".wav": "the file became shorter while it was read", ".flac": "decoding failed in the second pass"}.items():
        path = write_sound(tmp_path / f"growing{ending}", railway.samples[:48000], 24000)
        track = decoder.probe(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(AudioError, match=says) as caught:
            decoder.load(path, track)
        assert caught.value.reason == "unreadable"
    assert list(samples.iterdir()) == []


def test_names_that_are_not_utf_8_reach_the_child(tmp_path, railway, write_sound, decoder) -> None:
    for ending in (".wav", ".m4a"):
        plain = write_sound(tmp_path / f"plain{ending}", railway.samples[:24000], 24000)
        path = plain.rename(tmp_path / os.fsdecode(b"caf\xe9 \n'\"" + ending.encode()))
        assert decoder.load(path, decoder.probe(path))[0].seconds == pytest.approx(1.0, abs=0.1)


def signal_during_request(decoder: AudioDecoder, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a signal to the child when the next request is sent to it."""
    child = decoder._child
    ask = child.request

    def request(*given: Any) -> Any:
        child.process.send_signal(number)
        return ask(*given)

    monkeypatch.setattr(child, "request", request)


def test_a_stalled_file_is_refused_and_the_next_one_decoded(sample, tmp_path, monkeypatch) -> None:
    with AudioDecoder(tmp_path / "samples", stall=1.5) as decoder:
        decoder.probe(sample / "rms/railway.ogg")
        signal_during_request(decoder, signal.SIGSTOP, monkeypatch)
        with pytest.raises(AudioError, match="no progress for 1.5 s") as caught:
            decoder.probe(sample / "rms/railway.ogg")
        assert caught.value.reason == "decoder_stalled"
        assert decoder.probe(sample / "rms/railway.ogg").frames > 0


def test_a_crashed_decoder_fails_one_file_and_is_restarted(sample, decoder, monkeypatch) -> None:
    decoder.probe(sample / "rms/railway.ogg")
    signal_during_request(decoder, signal.SIGSEGV, monkeypatch)
    with pytest.raises(AudioError, match="the decoder died .SIGSEGV.: no error output") as caught:
        decoder.probe(sample / "rms/railway.ogg")
    assert caught.value.reason == "decoder_crashed"
    assert decoder.probe(sample / "rms/railway.ogg").frames > 0


def test_a_file_that_needs_more_memory_than_allowed_is_refused(tmp_path, railway, sample) -> None:
    import soundfile

    wide = np.repeat(railway.samples[:48000, None], 60, axis=1)
    soundfile.write(tmp_path / "wide.wav", wide, 24000)
    with AudioDecoder(tmp_path / "samples", memory=150 << 20) as small:
        with pytest.raises(AudioError) as caught:
            small.probe(tmp_path / "wide.wav")
        assert caught.value.reason == "decoder_crashed"
        assert small.probe(sample / "slt/kitchen.mp3").frames > 0
    with AudioDecoder(tmp_path / "samples") as usual:
        assert usual.probe(tmp_path / "wide.wav").frames == 48000


def test_a_full_disk_is_an_error_of_the_run_and_not_of_the_recording(tmp_path, sample) -> None:
    with AudioDecoder(tmp_path / "samples") as decoder:
        track = decoder.probe(sample / "rms/railway.ogg")
        endless = track.model_copy(update={"frames": 10**15})
        with pytest.raises(UserError, match=r"decoding 'railway.ogg' needs [\d,]+ bytes at"):
            decoder.load(sample / "rms/railway.ogg", endless)


def test_a_disk_that_fills_up_during_decoding_raises_enospc(sample, decoder) -> None:
    track = decoder.probe(sample / "rms/railway.ogg")
    request = {"do": "load", "path": str(sample / "rms/railway.ogg"), "track": track.model_dump()}
    with Path("/dev/full").open("wb") as full, pytest.raises(OSError, match="No space left") as caught:
        decoder._send_request(request, [full.fileno(), full.fileno()])
    assert caught.value.errno == errno.ENOSPC
    assert decoder.load(sample / "rms/railway.ogg", track)[0].seconds == pytest.approx(35.62)


def test_the_child_has_its_own_process_group(sample, decoder) -> None:
    decoder.probe(sample / "rms/railway.ogg")
    child = decoder._child.process.pid
    assert os.getpgid(child) == child


BLOCKING = """
import overtone.data_prep.audio.sandboxed_decoder as decoder
decoder.probe_recording = lambda path, *_: open(path, "rb").read()
"""
"""A named pipe would be refused; like this it blocks as a file on a broken disk does."""


@pytest.mark.slow
@pytest.mark.ci
def test_the_child_exits_when_its_parent_is_killed(tmp_path) -> None:
    """While a file blocks it: nobody is left to stop it."""
    os.mkfifo(tmp_path / "pipe.wav")
    code = (
        "import sys; from pathlib import Path; from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder\n"
        "AudioDecoder(Path(sys.argv[1]), stall=2.0).probe(Path(sys.argv[2]))"
    )
    (tmp_path / "sitecustomize.py").write_text(BLOCKING)
    command = [sys.executable, "-c", code, tmp_path / "samples", tmp_path / "pipe.wav"]
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"})
    writer = open_for_writing(tmp_path / "pipe.wav", parent)
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    psutil.wait_procs([child], timeout=30)
    os.close(writer)
    assert not child.is_running()
    assert list((tmp_path / "samples").iterdir()) == []


def open_for_writing(pipe: Path, process: subprocess.Popen) -> int:
    """The descriptor of a named pipe, once a child of `process` reads it."""
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < deadline
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, error  # no reader yet
        time.sleep(0.01)


def test_the_child_stops_at_the_bounds_of_its_request(tmp_path, decoder) -> None:
    (tmp_path / "long.flac").write_bytes(crafted(900 * 16_000, 16_000, declared=0))
    with pytest.raises(AudioError, match="at most 60 s are read") as caught:
        decoder.probe(tmp_path / "long.flac", AudioLimits(seconds=60))
    assert caught.value.seconds < 65
    assert decoder.probe(tmp_path / "long.flac").frames == 900 * 16_000, "the next request has bounds of its own"


def test_a_request_has_a_time_limit_even_if_it_makes_progress(tmp_path) -> None:
    (tmp_path / "long.flac").write_bytes(crafted(3600 * 48_000, 48_000))
    with AudioDecoder(tmp_path, longest=0.0) as decoder, pytest.raises(AudioError, match="not decoded after 0 s") as caught:
        decoder.probe(tmp_path / "long.flac")
    assert caught.value.reason == "decoder_stalled"
