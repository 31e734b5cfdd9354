"""Storage format of a recording: lossless or lossy, and its bit rate. Decides between copies that sound equally good."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import soundfile

from overtone.data_prep.audio import mp3_frames
from overtone.data_prep.audio.file_view import FilePart
from overtone.finetune.storage import input_files

LOSSLESS = ("PCM_", "FLOAT", "DOUBLE", "ALAC_")
"""Beginnings of libsndfile's names of lossless encodings; 8-bit PCM and the others are lossy."""
COARSE = ("PCM_S8", "PCM_U8")


class Encoding(NamedTuple):
    """Encoding of a file. `kilobits`: thousands of bits per second; 0 if unknown."""

    lossless: bool
    kilobits: float


def read_encoding(path: Path, seconds: float) -> Encoding:
    """Return the encoding of a recording of known duration. A file that libsndfile cannot open (m4a, webm, wma) counts as lossy."""
    size = path.stat().st_size if path.is_file() else 0
    kilobits = size * 8 / 1000 / max(seconds, 0.001)
    try:
        input_files.require_regular(path)
        if mp3_frames.is_mp3(FilePart(path, 0, size)):  # libmpg123 would print warnings about joined files
            return Encoding(False, kilobits)
        subtype = soundfile.info(os.fsencode(path)).subtype
    except (OSError, soundfile.LibsndfileError):
        return Encoding(False, kilobits)
    return Encoding(subtype.startswith(LOSSLESS) and subtype not in COARSE, kilobits)
