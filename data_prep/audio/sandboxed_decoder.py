"""Sandboxed audio decoding in a child process: a file that crashes or stalls the decoder affects only that file.

Parent and child exchange JSON messages over a socket; samples go through anonymous temporary files that the parent memory-maps, so that a
ten-hour recording takes a few megabytes of memory in both processes, and a killed run leaves no files behind.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict

import numpy as np
from pydantic import JsonValue

from overtone.data_prep.audio.channel_selection import AUTO
from overtone.data_prep.audio.stream_reader import DECODE_ERRORS, AudioError, format_error, holds_sound, open_stream
from overtone.data_prep.audio.waveform import (
    MASTER_RATE,
    RECORDING,
    SPEECH_RATE,
    Audio,
    AudioLimits,
    Track,
    convert_position,
    probe_recording,
    resample_blocks,
)
from overtone.finetune.storage import files
from overtone.finetune.storage.text_lines import split_lines

STALL_SECONDS = 10.0
"""Maximum time without a decoded block."""
MEMORY = 2 << 30
"""Address space limit of the child in bytes. Python, numpy and the codecs take 0.2 GiB, a block a few megabytes."""
START_SECONDS = 120.0
"""Maximum time for the child's imports, which are slow on a busy machine or a network disk."""
HEARTBEAT_SECONDS = 0.5
MESSAGE = 1 << 18  # bytes; a path has at most 4096, and a `Track` of 64 channels less than 2000

ALIVE = b"alive "
"""A message of the child after a block, followed by the seconds decoded so far."""

RATES = (MASTER_RATE, SPEECH_RATE)
STORED = ("master.f32", "speech.f32")
"""Files of a stored recording, one per rate: samples without a header."""

Report = Callable[[float], None]
"""Called every half second of a request with the seconds decoded so far."""


class DecoderRequest(TypedDict):
    """A message to the child."""

    do: str
    path: str
    bounds: NotRequired[dict[str, Any]]
    """Fields of `AudioLimits`."""
    channels: NotRequired[str]
    track: NotRequired[dict[str, Any]]
    """Fields of `Track`."""


class DecoderAnswer(TypedDict, total=False):
    """The child's answer: a result; the reason of an `AudioError`, with its detail and seconds; or the number of an `OSError`."""

    result: JsonValue
    reason: str
    detail: str
    seconds: float
    errno: int


def ignore_report(_seconds: float) -> None:
    """Do nothing: the `Report` of a caller that shows no progress."""


class AudioDecoder:
    """Owns one child process, started on first use and restarted after it died. Each worker has one. Use it as a context manager.

    `folder` receives the temporary samples: 160 kB per second of the current recording, freed with the last reference to its `Audio`. Its
    methods raise `AudioError` with the reasons of `waveform.probe_recording`, and `decoder_crashed` (also at the memory limit) and
    `decoder_stalled`. The last two may be caused by the machine instead of the file, so callers should not store them.
    """

    def __init__(self, folder: Path, stall: float = STALL_SECONDS, memory: int = MEMORY, longest: float = inf) -> None:
        """`longest`: maximum seconds of one request, even if it makes progress."""
        self._folder, self._stall, self._memory, self._longest = files.make_folder(folder), stall, memory, longest
        self._child: _DecoderProcess | None = None

    def probe(self, path: Path, bounds: AudioLimits = RECORDING, report: Report = ignore_report, channels: str = AUTO) -> Track:
        """Run `waveform.probe_recording` in the child. Messages of a decoder library (libmpg123, for damaged MP3) become a warning."""
        answer = self._send_request({"do": "probe", "path": str(path), "bounds": asdict(bounds), "channels": channels}, [], report)
        track = Track.model_validate(answer)
        lines = self._child.read_error_lines() if self._child else []
        return track if track.warning or not lines else track.model_copy(update={"warning": f"the decoder says: {lines[0]}"})

    def count_channels(self, path: Path) -> int:
        """Return the number of channels of a recording; 1 if it cannot be read, which `probe` reports."""
        try:
            count = self._send_request({"do": "count channels", "path": str(path)}, [])
        except AudioError:
            return 1
        assert isinstance(count, int)
        return count

    def holds_sound(self, path: Path) -> bool:
        """Run `stream_reader.holds_sound` in the child; False also for a file that crashes or stalls it."""
        try:
            return bool(self._send_request({"do": "recognise", "path": str(path)}, []))
        except AudioError:
            return False

    def load(self, path: Path, track: Track) -> tuple[Audio, Audio]:
        """Decode the mono mix at `MASTER_RATE` and at `SPEECH_RATE`, memory-mapped. Raises `UserError` if the disk is too full."""
        with tempfile.TemporaryFile(dir=self._folder) as master, tempfile.TemporaryFile(dir=self._folder) as speech:
            self._write_samples(path, track, [master, speech], ignore_report)
            return _map_samples(master, speech, track)

    def store(self, path: Path, track: Track, folder: Path, follow: Callable[[Path, float], None] = lambda _folder, _seconds: None) -> None:
        """Write the samples of `load` to files in `folder`, which appears once it is complete; does nothing if it exists. Use it for
        recordings whose samples several processes need, or the next run. `follow`: called every half second with the temporary folder, for
        `map_growing`, and the seconds decoded so far. Raises `UserError` if the disk is too full."""
        if folder.exists():
            return
        with files.new_folder(folder) as temporary:
            one, other = (temporary / name for name in STORED)
            with one.open("xb") as master, other.open("xb") as speech:
                self._write_samples(path, track, [master, speech], partial(follow, temporary))
                for file in (master, speech):
                    os.fsync(file.fileno())  # after a power failure, the next run uses what the folder holds

    def _write_samples(self, path: Path, track: Track, targets: list[IO[bytes]], report: Report) -> None:
        needed = 4 * sum(_list_lengths(track))
        files.require_space(self._folder, needed, f"decoding {path.name!r}")
        request: DecoderRequest = {"do": "load", "path": str(path), "track": track.model_dump()}
        with files.explain_full_disk(self._folder / path.name, needed):
            self._send_request(request, [file.fileno() for file in targets], report)

    def close(self) -> None:
        """Stop the child."""
        if self._child:
            self._child.kill()
        self._child = None

    def __enter__(self) -> AudioDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_request(self, request: DecoderRequest, descriptors: list[int], report: Report = ignore_report) -> JsonValue:
        if self._child is None or self._child.process.poll() is not None:
            self.close()
            self._child = _DecoderProcess(self._stall, self._memory)
        try:
            answer = self._child.request(request, descriptors, self._longest, report)
        except BaseException:  # also an error of `report`: the child is still at work, and its answer would be taken for the next one
            self.close()
            raise
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "reason" in answer:
            raise AudioError(answer["reason"], answer["detail"], answer["seconds"])
        return answer["result"]


class _DecoderProcess:
    """Owns the process, the socket, and the file that catches its standard error."""

    def __init__(self, stall: float, memory: int) -> None:
        self._stall = stall
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed by `kill`
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        code = "import sys; import overtone.data_prep.audio.sandboxed_decoder as d; d.serve_requests(*map(float, sys.argv[1:]))"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(stall), str(memory), str(HEARTBEAT_SECONDS)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C goes to the parent, which finishes the current item
            )
        if self._receive(START_SECONDS) != b"ready":
            raise RuntimeError(f"the decoder process did not start ({self._describe_exit()}): {self._read_last_error_line()}")

    def request(self, request: DecoderRequest, descriptors: list[int], longest: float, report: Report) -> DecoderAnswer:
        """Send a request and wait for the answer. Raises `AudioError` if the child dies or stalls; it is unusable afterwards."""
        self._stderr.truncate(0)
        with contextlib.suppress(ConnectionError):  # the child is dead; `_receive` reports it
            socket.send_fds(self._line, [json.dumps(request).encode()], descriptors)
        end = time.monotonic() + longest
        while (message := self._receive(self._stall)) and message.startswith(ALIVE):
            report(float(message.removeprefix(ALIVE)))
            if time.monotonic() > end:
                raise AudioError("decoder_stalled", f"not decoded after {longest:g} s")
        if message is None:
            raise AudioError("decoder_stalled", f"no progress for {self._stall:g} s; if the disk is slow, copy the file to a local one")
        if not message:
            raise AudioError("decoder_crashed", f"the decoder died ({self._describe_exit()}): {self._read_last_error_line()}")
        return json.loads(message)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._line.close()
        self._stderr.close()

    def _receive(self, seconds: float) -> bytes | None:
        """Return a message; empty if the child is dead, None after a timeout."""
        self._line.settimeout(seconds)
        try:
            return self._line.recv(MESSAGE)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""

    def _describe_exit(self) -> str:
        try:
            code = self.process.wait(1.0)  # it closes the socket before its exit code is known
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def read_error_lines(self) -> list[str]:
        """Return the lines on standard error since the last request."""
        self._stderr.seek(0)
        return split_lines(self._stderr.read().decode(errors="replace").replace("\r", "\n").strip())

    def _read_last_error_line(self) -> str:
        return ["no error output", *self.read_error_lines()][-1]


def serve_requests(stall: float, memory: float, heartbeat: float) -> None:
    """Main loop of the child: answer requests from standard input, which is a socket, until the parent closes it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    with socket.socket(fileno=0) as line:
        line.send(b"ready")
        while True:
            message, descriptors, _, _ = socket.recv_fds(line, MESSAGE, len(RATES))
            if not message:
                return
            answer = _handle_request(json.loads(message), descriptors, _make_heartbeat(line, stall, heartbeat))
            signal.setitimer(signal.ITIMER_REAL, 0)
            for descriptor in descriptors:
                os.close(descriptor)
            line.send(json.dumps(answer).encode())


def _make_heartbeat(line: socket.socket, stall: float, heartbeat: float) -> Report:
    """Return a function to call after each block. Without calls, an alarm ends this process, even if its parent is dead."""
    last = 0.0

    def alive(seconds: float) -> None:
        nonlocal last
        if time.monotonic() - last > heartbeat:
            last = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 2 * stall + 1)
            line.send(ALIVE + str(seconds).encode())

    alive(0.0)
    return alive


def _handle_request(request: DecoderRequest, descriptors: list[int], alive: Report) -> DecoderAnswer:
    path = Path(request["path"])
    try:
        if request["do"] == "probe":
            return {"result": probe_recording(path, alive, AudioLimits(**request["bounds"]), request["channels"]).model_dump()}
        if request["do"] == "count channels":
            return {"result": open_stream(path).channels}
        if request["do"] == "recognise":
            return {"result": holds_sound(path)}
        return _write_samples(path, Track.model_validate(request["track"]), descriptors, alive)
    except AudioError as error:
        return {"reason": error.reason, "detail": error.detail, "seconds": error.seconds}
    except DECODE_ERRORS as error:  # `probe_recording` reports them; they occur in the second pass if the file changed in between
        return {"reason": "unreadable", "detail": f"decoding failed in the second pass: {format_error(error)}", "seconds": 0.0}
    except MemoryError:
        return {"reason": "decoder_crashed", "detail": "decoding exceeds the memory limit", "seconds": 0.0}


def _write_samples(path: Path, track: Track, descriptors: list[int], alive: Report) -> DecoderAnswer:
    done = 0
    for pieces in resample_blocks(path, track, RATES, lambda: alive(0.0)):
        done += len(pieces[0])
        try:
            for descriptor, piece in zip(descriptors, pieces, strict=True):
                left = memoryview(piece.tobytes())
                while left:
                    left = left[os.write(descriptor, left) :]
        except OSError as error:
            return {"errno": error.errno or errno.EIO}
        alive(done / RATES[0])
    return {"result": None}


def map_stored(folder: Path, track: Track) -> tuple[Audio, Audio]:
    """Return the samples that `AudioDecoder.store` wrote to `folder`, memory-mapped. Raises OSError or ValueError if they are not there."""
    with (folder / STORED[0]).open("rb") as master, (folder / STORED[1]).open("rb") as speech:
        return _map_samples(master, speech, track)


def map_growing(folder: Path) -> tuple[Audio, Audio]:
    """Return the samples that `AudioDecoder.store` has written so far to its temporary folder, memory-mapped; the two may end at different
    times. Raises OSError if the folder is not there."""
    one, other = (
        Audio(np.memmap(path, np.float32, "c", shape=(length,)) if length else np.zeros(0, np.float32), rate)
        for path, rate in zip((folder / name for name in STORED), RATES, strict=True)
        for length in [path.stat().st_size // 4]
    )
    return one, other


def _list_lengths(track: Track) -> list[int]:
    """Return the samples at each of `RATES`."""
    return [convert_position(track.frames, track.rate, rate) for rate in RATES]


def _map_samples(master: IO[bytes], speech: IO[bytes], track: Track) -> tuple[Audio, Audio]:
    """Memory-map the samples copy-on-write: torch rejects read-only memory, and writes must not reach the file."""
    one, other = (
        Audio(np.memmap(file, np.float32, "c", shape=(length,)) if length else np.zeros(0, np.float32), rate)
        for file, length, rate in zip((master, speech), _list_lengths(track), RATES, strict=True)
    )
    return one, other
