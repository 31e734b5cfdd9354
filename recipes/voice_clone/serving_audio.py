"""Speech as bytes that clients know, made while it is spoken: each encoder takes samples as they come and gives bytes as they are ready."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from data_prep.audio import Audio, flac
from finetune.errors import UserError

UNKNOWN = 0xFFFFFFFF
"""Length in a WAV header whose end is not known yet: readers go on to the end of what they are given."""


class Encoder(Protocol):
    """From samples to a file's bytes, piece by piece."""

    def feed(self, wave: np.ndarray) -> bytes:
        """Bytes that are ready after these samples, [samples] float32 within ±1; none is an answer too."""

    def finish(self) -> bytes:
        """The rest."""


@dataclass(frozen=True)
class Form:
    """What a format is called elsewhere."""

    media_type: str
    codec: str = ""
    """Encoder of FFmpeg; empty: none is needed."""
    container: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Of the container."""


FORMS = {
    "mp3": Form("audio/mpeg", "libmp3lame", "mp3"),
    "opus": Form("audio/ogg", "libopus", "ogg", (("page_duration", "200000"),)),
    "aac": Form("audio/aac", "aac", "adts"),
    "flac": Form("audio/flac"),
    "wav": Form("audio/wav"),
    "pcm": Form("audio/pcm"),
}
"""In the order of OpenAI's own list, the default first. Ogg's pages are a second long unless told otherwise (in µs)."""


def available() -> tuple[str, ...]:
    """The formats that can be written here: a PyAV built by hand may lack an encoder."""
    import av

    return tuple(name for name, form in FORMS.items() if not form.codec or form.codec in av.codecs_available)


def encoder(name: str, rate: int) -> Encoder:
    """For mono speech at `rate` Hz. Raises `UserError` for a format that cannot be written here."""
    if name not in available():
        raise UserError(f"response_format {name!r} is not supported; available: {', '.join(available())}")
    if name in ("wav", "pcm"):
        return Plain(wav_header(rate) if name == "wav" else b"")
    return Flac(rate) if name == "flac" else Compressed(FORMS[name], rate)


def pcm(wave: np.ndarray) -> bytes:
    """16 bits, little-endian."""
    return (np.clip(wave, -1, 1) * 32767).round().astype("<i2").tobytes()


def wav_header(rate: int) -> bytes:
    """44 bytes: 16-bit mono PCM of unknown length (RIFF WAVE of Microsoft and IBM, Multimedia Programming Interface 1.0, 1991)."""
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    return b"RIFF" + struct.pack("<I", UNKNOWN) + b"WAVEfmt " + form + b"data" + struct.pack("<I", UNKNOWN)


class Plain:
    """Samples as they are, after a header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def feed(self, wave: np.ndarray) -> bytes:
        header, self._header = self._header, b""
        return header + pcm(wave)

    def finish(self) -> bytes:
        return self._header


class Flac:
    """All of it at the end: the header tells how many samples there are, and readers hold it to that."""

    def __init__(self, rate: int) -> None:
        self._rate, self._waves = rate, [np.zeros(0, np.float32)]

    def feed(self, wave: np.ndarray) -> bytes:
        self._waves.append(wave)
        return b""

    def finish(self) -> bytes:
        return flac(Audio(np.concatenate(self._waves), self._rate))


class Compressed:
    """Owns an encoder of FFmpeg and the container that it writes into memory."""

    def __init__(self, form: Form, rate: int) -> None:
        import av

        self._rate, self._done, self._out = rate, 0, _Out()
        self._container = av.open(self._out, "w", format=form.container, options=dict(form.options))
        self._stream = self._container.add_stream(form.codec, rate=rate, layout="mono")

    def feed(self, wave: np.ndarray) -> bytes:
        from av import AudioFrame

        if len(wave):
            frame = AudioFrame.from_ndarray(np.clip(wave, -1, 1).astype(np.float32)[None], format="flt", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = self._rate, self._done, Fraction(1, self._rate)
            self._done += len(wave)
            self._container.mux(self._stream.encode(frame))
        return self._out.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._out.take()


class _Out:
    """The file that FFmpeg writes to; it cannot be gone back in, so nothing that was sent changes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        taken, self._bytes = bytes(self._bytes), bytearray()
        return taken
