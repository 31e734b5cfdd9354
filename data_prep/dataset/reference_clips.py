"""Reference clip of each speaker: six seconds of training clips, never of validation clips.

The official Qwen3-TTS script stacks the spectrograms of the references in a batch and requires 24 kHz, so all have exactly the same length.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, convert_to_int16, encode_pcm_file, fade_edges, read_audio
from overtone.data_prep.manifest import ManifestRow
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.synthetic_audio_mark import make_comment_of_copy

SECONDS = 6.0
LENGTH = round(SECONDS * MASTER_RATE)
SPARE_SECONDS = 3.0
"""Maximum excess of a clip that is cut to the reference length."""
FOLDER = "refs"


def make_reference_path(speaker: str) -> str:
    """Return the path of a speaker's reference, relative to the dataset."""
    safe = "".join(letter if letter.isalnum() or letter in " -_" else f"%{ord(letter):x}" for letter in speaker)
    return f"{FOLDER}/{safe}.wav"


def choose_clips(rows: list[ManifestRow]) -> list[ManifestRow]:
    """Return the clips of one speaker that form the reference: the one with the best SNR and 6 to 9 s, or several, or one repeated."""
    ordered = sorted(
        rows,
        key=lambda row: (
            not SECONDS <= _read_duration(row) <= SECONDS + SPARE_SECONDS,
            -(row.quality.snr_db or 0.0 if row.quality else 0.0),
            row.id or "",
        ),
    )
    total = 0.0
    for count, row in enumerate(itertools.cycle(ordered), start=1):
        total += _read_duration(row)
        if total >= SECONDS:
            return list(itertools.islice(itertools.cycle(ordered), count))
    raise ValueError("no clip to choose from")


def write_references(out: Path, rows: list[ManifestRow]) -> None:
    """Write the references of all speakers in `rows` and delete all others."""
    speakers = {row.speaker or "": [one for one in rows if one.speaker == row.speaker and one.split == "train"] for row in rows}
    for speaker, own in speakers.items():
        chosen = [out / row.audio for row in choose_clips(own)]
        comment = next(filter(None, map(make_comment_of_copy, chosen)), "")
        wav = make_reference_wav([read_audio(path, MASTER_RATE) for path in chosen], comment)
        path = out / make_reference_path(speaker)
        if not path.is_file() or input_files.read_bytes(path) != wav:
            files.write_bytes(path, wav)
    for path in (out / FOLDER).glob("*.wav"):
        if f"{FOLDER}/{path.name}" not in {make_reference_path(speaker) for speaker in speakers}:
            files.discard(path)


def make_reference_wav(clips: list[Audio], comment: str = "") -> bytes:
    """Return the WAV bytes of the concatenated clips, cut to exactly six seconds; 16 bits. `comment`: a mark of synthetic speech, or
    none."""
    whole = fade_edges(Audio(np.concatenate([clip.samples for clip in clips])[:LENGTH], MASTER_RATE))
    return encode_pcm_file(convert_to_int16(whole.samples), whole.rate, "WAV", comment)


def _read_duration(row: ManifestRow) -> float:
    return row.duration or 0.0
