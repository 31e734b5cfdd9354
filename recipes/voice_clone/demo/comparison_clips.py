"""The demo's clips of each held-out sentence: the recording, its codec reconstruction, and the speech of the base and of the trained
model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.manifest import read_lines
from overtone.finetune.storage import files
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.evaluation_folder import CLIPS, JSON
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.evaluation.systems import RECORDINGS, slug

THROUGH_CODEC, BEFORE, AFTER = "through the codec", "before", "after"
SPOKEN = (RECORDINGS, BEFORE, AFTER)


@dataclass(frozen=True)
class ComparisonClip:
    """One clip of a sentence."""

    text: str
    heard: str
    """The transcript; empty if the clip has none."""
    path: Path
    real: Path
    """The recording of the same text by the voice itself."""


def read_clips(evaluation: Path, new_voice: Path) -> dict[str, list[ComparisonClip]]:
    """Title → clips, titles in the order of `SPOKEN`, clips in the order of `held_out.jsonl`."""
    clips = json.loads((evaluation / JSON).read_text(encoding="utf-8"))["clips"]
    real = {row["text"]: new_voice / row["audio"] for row in read_rows(new_voice / "held_out.jsonl")}
    systems = dict.fromkeys(clip["system"] for clip in clips)
    by_title = {_format_title(system): [clip for clip in clips if clip["system"] == system] for system in systems}
    return {title: [_make_clip(clip, evaluation, real) for clip in sorted(by_title[title], key=_get_key)] for title in SPOKEN}


def reconstruct_clips(recordings: Sequence[ComparisonClip], codec: str, whisper: str, out: Path) -> list[ComparisonClip]:
    """Encode and decode the recordings: the upper bound for models that generate these codes. Writes FLAC files to `out`."""
    model, asr = open_codec(codec).load("cpu"), intelligibility.load_whisper(whisper)
    reconstructed = []
    for clip in recordings:
        (codes,) = model.encode([read_clip(clip.real)])
        wave = model.decode(codes)
        path = out / f"{clip.real.stem}.flac"
        files.write_bytes(path, encode_flac(Audio(wave, MASTER_RATE)))
        reconstructed.append(ComparisonClip(clip.text, intelligibility.transcribe(asr, wave, "english").text, path, clip.real))
    return reconstructed


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [row for _, row in read_lines(path)]


def _format_title(system: str) -> str:
    return RECORDINGS if system == RECORDINGS else BEFORE if system.endswith("zero-shot") else AFTER


def _get_key(clip: dict[str, Any]) -> str:
    return str(clip["key"])


def _make_clip(clip: dict[str, Any], evaluation: Path, real: dict[str, Path]) -> ComparisonClip:
    text, system = clip["text"], clip["system"]
    path = real[text] if system == RECORDINGS else evaluation / CLIPS / slug(system) / f"{clip['key']}.flac"
    return ComparisonClip(text, (clip["heard"] or "").strip(), path, real[text])
