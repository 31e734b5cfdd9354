"""Streaming audio encoders: each takes chunks of samples and returns the bytes that are ready.

Each format that has tags says that the speech is synthetic, so that `overtone voice` refuses it as training data and others can recognize
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from overtone.finetune.errors import UserError
from overtone.finetune.storage.synthetic_audio_mark import SOFTWARE, SyntheticMark
from overtone.recipes.speech.marked_audio_encoding import UNNAMED, encode_marked_flac, encode_pcm, wav_header


class AudioEncoder(Protocol):
    """Encodes chunks of samples into the bytes of a file."""

    def feed(self, wave: np.ndarray) -> bytes:
        """Bytes that are ready after these samples, [samples] float32 within ±1; may be empty."""

    def finish(self) -> bytes:
        """The remaining bytes."""


@dataclass(frozen=True)
class AudioFormat:
    """A format's names in HTTP and FFmpeg."""

    media_type: str
    codec: str = ""
    """FFmpeg's encoder; empty: not encoded by FFmpeg."""
    container: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the container."""
    is_written_at_once: bool = False
    """True if the whole file is written at its end."""


FORMATS = {
    "mp3": AudioFormat("audio/mpeg", "libmp3lame", "mp3"),
    "opus": AudioFormat("audio/ogg", "libopus", "ogg", (("page_duration", "200000"),)),
    "aac": AudioFormat("audio/aac", "aac", "adts", (("write_id3v2", "1"),)),
    "flac": AudioFormat("audio/flac", is_written_at_once=True),
    "wav": AudioFormat("audio/wav"),
    "pcm": AudioFormat("audio/pcm"),
}
"""The formats in the order of OpenAI's documentation, the default first. `page_duration` is in µs; Ogg's default of 1 s would delay the
audio. ADTS has no tags of its own: `write_id3v2` puts those of MP3 in front, which players skip or read."""


def available_formats() -> tuple[str, ...]:
    """The formats that can be written here; a custom build of PyAV may lack an encoder."""
    import av

    return tuple(name for name, format in FORMATS.items() if not format.codec or format.codec in av.codecs_available)


def make_encoder(name: str, rate: int, mark: SyntheticMark = UNNAMED) -> AudioEncoder:
    """An encoder of mono speech at `rate` Hz, which writes `mark` into the tags; PCM has none.

    Raises `UserError` for a format that cannot be written here."""
    if name not in available_formats():
        raise UserError(f"response_format {name!r} is not supported; available: {', '.join(available_formats())}")
    if name in ("wav", "pcm"):
        return PcmEncoder(wav_header(rate, mark=mark) if name == "wav" else b"")
    return FlacEncoder(rate, mark) if name == "flac" else FfmpegEncoder(FORMATS[name], rate, mark)


class PcmEncoder:
    """PCM samples after a header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def feed(self, wave: np.ndarray) -> bytes:
        header, self._header = self._header, b""
        return header + encode_pcm(wave)

    def finish(self) -> bytes:
        return self._header


class FlacEncoder:
    """Returns the whole file at the end, because its header has the number of samples, which readers need."""

    def __init__(self, rate: int, mark: SyntheticMark) -> None:
        self._rate, self._mark, self._waves = rate, mark, [np.zeros(0, np.float32)]

    def feed(self, wave: np.ndarray) -> bytes:
        self._waves.append(wave)
        return b""

    def finish(self) -> bytes:
        return encode_marked_flac(np.concatenate(self._waves), self._rate, self._mark)


class FfmpegEncoder:
    """Owns an FFmpeg encoder and its container, which is written to memory."""

    def __init__(self, format: AudioFormat, rate: int, mark: SyntheticMark) -> None:
        import av

        self._rate, self._done, self._out = rate, 0, _Sink()
        self._container = av.open(self._out, "w", format=format.container, options=dict(format.options))
        self._container.metadata.update({"comment": mark.comment, "software": SOFTWARE})
        self._stream = self._container.add_stream(format.codec, rate=rate, layout="mono")

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


class _Sink:
    """The file to which FFmpeg writes. It does not support seeking, so bytes that were sent never change."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        taken, self._bytes = bytes(self._bytes), bytearray()
        return taken
