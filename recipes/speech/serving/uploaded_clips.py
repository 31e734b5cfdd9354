"""Reference clips that browsers upload. They are kept for 15 minutes in a folder of limited size, and decoded in a separate process."""

from __future__ import annotations

import asyncio
import io
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile

from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio.stream_reader import EXTENSIONS
from overtone.data_prep.audio.waveform import MASTER_RATE, AudioError, AudioLimits
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files

if TYPE_CHECKING:
    import numpy as np

LARGEST = 15 * 2**20
"""Maximum size of a clip in bytes: more than one minute in the largest common format."""
BOUNDS = AudioLimits(seconds=60.0, channels=8, samples=60 * 48_000 * 8)
"""Limits of a clip; a longer one would make the prompt longer than any in training."""
DECODING_SECONDS = 30.0
"""Time limit for decoding one clip. A clip within `BOUNDS` takes less than a second."""
ROOM = 2**28
"""Maximum size in bytes of all clips, including decoded ones; the oldest are removed first."""
SMALLEST = 2**20
"""Size in bytes that smaller clips count as, which limits the number of files."""
KEPT_SECONDS = 900.0
"""Time after which a clip is removed."""
SWEEP_SECONDS = 30.0
"""Interval at which old clips are removed."""
DECODED = "decoded.wav"


class Clips:
    """Owns the content of `folder`, and the decoding process, until `close`. Thread-safe."""

    def __init__(self, folder: Path, room: int = ROOM, decoder: AudioDecoder | None = None) -> None:
        self._folder, self._room, self._lock = files.make_folder(folder).resolve(), room, threading.Lock()
        self._decoder = decoder or AudioDecoder(self._folder / "decoding", longest=DECODING_SECONDS)
        self._thread = ThreadPoolExecutor(1, "clips")  # one clip at a time, so that decoding uses at most one core

    def keep(self, data: bytes, name: str) -> Path:
        """Write an upload into the folder and return its path. Of the client's file name, only a common extension is used. Blocks."""
        extension = Path(name).suffix.lower()
        path = self._folder / secrets.token_hex(16) / f"clip{extension if extension in EXTENSIONS else ''}"
        with self._lock:
            self._make_room(max(SMALLEST, len(data)))
            files.write_bytes(path, data)
        return path

    def find(self, path: str) -> Path | None:
        """The clip at a path that `keep` returned; None for other paths and for clips that were removed."""
        match = re.fullmatch(rf"{re.escape(str(self._folder))}/[0-9a-f]{{32}}/clip(\.[a-z0-9]+)?", path)
        return Path(path) if match and Path(path).is_file() else None

    async def decode(self, path: str) -> Path:
        """The clip as a mono WAV file at 24 kHz. Raises `UserError` for a clip that is not audio, or too long."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._decode_now, path)

    def _decode_now(self, path: str) -> Path:
        clip = self.find(path)
        if clip is None:
            raise UserError("the reference clip has been removed; upload it again")
        target = clip.with_name(DECODED)
        if target.is_file():
            return target
        try:
            track = self._decoder.probe(clip, BOUNDS)
            if len(track.apart) > 1:
                raise AudioError("people_on_channels", "its channels have different sounds; upload one of them")
            master, _ = self._decoder.load(clip, track)
        except (AudioError, OSError) as error:
            raise UserError(f"the reference clip cannot be used ({error}); give 5 to 15 s of clean speech") from error
        assert master.rate == MASTER_RATE
        wave = wav(master.samples)
        with self._lock:
            self._make_room(len(wave), clip.parent)
            files.write_bytes(target, wave)
        return target

    def _make_room(self, needed: int, spared: Path | None = None) -> None:
        """Remove clips that are too old, and the oldest ones until `needed` bytes fit, but not `spared`. The caller holds the lock."""
        kept = sorted((folder.stat().st_mtime, folder) for folder in self._folder.iterdir() if folder.name != "decoding")
        sizes = {folder: max(SMALLEST, sum(file.stat().st_size for file in folder.iterdir())) for _, folder in kept}
        total = sum(sizes.values())
        for made, folder in kept:
            if folder != spared and (made < time.time() - KEPT_SECONDS or total + needed > self._room):
                files.discard(folder)
                total -= sizes[folder]

    def sweep(self) -> None:
        """Remove clips that are too old."""
        with self._lock:
            self._make_room(0)

    @asynccontextmanager
    async def sweeping(self, _: object) -> AsyncIterator[None]:
        """Lifespan of the server: removes old clips while it runs."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                await asyncio.to_thread(self.sweep)

        task = asyncio.create_task(sweep())
        try:
            yield
        finally:
            task.cancel()

    def close(self) -> None:
        """Stop the decoding process. The caller removes the folder."""
        self._thread.shutdown(cancel_futures=True)
        self._decoder.close()


def wav(samples: np.ndarray) -> bytes:
    """Samples [n] float32 at 24 kHz as a lossless WAV file."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, MASTER_RATE, format="WAV", subtype="FLOAT")
    return buffer.getvalue()
