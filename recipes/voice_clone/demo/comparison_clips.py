"""The demo's clips of each held-out sentence: the recording, the recording through the codec, the base's and the trained model's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.audio.waveform import MASTER_RATE, Audio, flac
from data_prep.audio_codecs.selection import open_codec
from data_prep.manifest import read_lines
from finetune.storage import files
from recipes.speech.cli.evaluate import CLIPS, JSON
from recipes.speech.evaluation import intelligibility
from recipes.speech.evaluation.scoring import read_clip
from recipes.speech.evaluation.systems import RECORDINGS, slug

THROUGH_CODEC, BEFORE, AFTER = "through the codec", "before", "after"
SPOKEN = (RECORDINGS, BEFORE, AFTER)


@dataclass(frozen=True)
class Said:
    """One clip of a sentence."""

    text: str
    heard: str
    """Whisper's transcript; empty if there is no clip."""
    path: Path
    real: Path
    """The voice's own recording of the text."""


def read(evaluation: Path, new_voice: Path) -> dict[str, list[Said]]:
    """Title → clips, in the order of `SPOKEN`; the clips of a title are in the order of `held_out.jsonl`."""
    clips = json.loads((evaluation / JSON).read_text(encoding="utf-8"))["clips"]
    real = {row["text"]: new_voice / row["audio"] for row in rows_of(new_voice / "held_out.jsonl")}
    systems = dict.fromkeys(clip["system"] for clip in clips)
    by_title = {_title(system): [clip for clip in clips if clip["system"] == system] for system in systems}
    return {title: [_said(clip, evaluation, real) for clip in sorted(by_title[title], key=_key)] for title in SPOKEN}


def through_codec(recordings: Sequence[Said], codec: str, whisper: str, out: Path) -> list[Said]:
    """The voice's own recordings, encoded and decoded: the upper bound for models that speak in these codes. Writes FLAC files to `out`."""
    coder, asr = open_codec(codec).load("cpu"), intelligibility.load_whisper(whisper)
    found = []
    for clip in recordings:
        (codes,) = coder.encode([read_clip(clip.real)])
        wave = coder.decode(codes)
        path = out / f"{clip.real.stem}.flac"
        files.write_bytes(path, flac(Audio(wave, MASTER_RATE)))
        found.append(Said(clip.text, intelligibility.transcribe(asr, wave, "english").text, path, clip.real))
    return found


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [row for _, row in read_lines(path)]


def _title(system: str) -> str:
    return RECORDINGS if system == RECORDINGS else BEFORE if system.endswith("zero-shot") else AFTER


def _key(clip: dict[str, Any]) -> str:
    return str(clip["key"])


def _said(clip: dict[str, Any], evaluation: Path, real: dict[str, Path]) -> Said:
    text, system = clip["text"], clip["system"]
    path = real[text] if system == RECORDINGS else evaluation / CLIPS / slug(system) / f"{clip['key']}.flac"
    return Said(text, (clip["heard"] or "").strip(), path, real[text])
