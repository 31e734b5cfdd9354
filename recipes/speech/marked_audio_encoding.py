"""Generated speech as the bytes of a file that says in its tags that it is synthetic, which software wrote it, and with which model."""

from __future__ import annotations

import io
import struct

import numpy as np
import soundfile

from overtone.data_prep.audio.waveform import convert_to_int16
from overtone.finetune.storage.synthetic_audio_mark import SOFTWARE, SyntheticMark

UNKNOWN = 0xFFFFFFFF
"""Length field of a WAV header for audio of unknown length; readers then read to the end of the data."""
UNNAMED = SyntheticMark()
"""The mark of speech whose model is unknown where it is written."""


def encode_marked_flac(wave: np.ndarray, rate: int, mark: SyntheticMark) -> bytes:
    """Mono 16-bit FLAC of `wave` [n] float32, deterministic for the same samples, with the mark as Vorbis comments."""
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, 1, "PCM_16", format="FLAC") as file:
        file.comment, file.software = mark.comment, SOFTWARE
        file.write(convert_to_int16(wave))
    return buffer.getvalue()


def encode_marked_wav(wave: np.ndarray, rate: int, mark: SyntheticMark) -> bytes:
    """Mono 16-bit WAV of `wave` [n] float32."""
    return wav_header(rate, len(wave), mark) + encode_pcm(wave)


def encode_pcm(wave: np.ndarray) -> bytes:
    """`wave` [n] float32 as 16-bit little-endian PCM, the samples of every format here and of a dataset's clips. (libsndfile rounds samples
    of float32 down, which shifts all of them by half a step.)"""
    return convert_to_int16(wave).astype("<i2").tobytes()


def wav_header(rate: int, samples: int | None = None, mark: SyntheticMark = UNNAMED) -> bytes:
    """Header for 16-bit mono PCM, by default of unknown length, with the mark in its INFO list: ICMT (comment) and ISFT (software).

    RIFF WAVE of Microsoft and IBM, Multimedia Programming Interface 1.0, 1991.
    """
    tags = b"INFO" + _tag(b"ICMT", mark.comment) + _tag(b"ISFT", SOFTWARE)
    fields = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    chunks = b"WAVEfmt " + fields + b"LIST" + struct.pack("<I", len(tags)) + tags + b"data"
    data = UNKNOWN if samples is None else 2 * samples
    whole = UNKNOWN if samples is None else len(chunks) + 4 + data
    return b"RIFF" + struct.pack("<I", whole) + chunks + struct.pack("<I", data)


def _tag(name: bytes, text: str) -> bytes:
    """A chunk of the INFO list: its text ends with a zero, at an even length."""
    content = text.encode() + b"\0"
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
