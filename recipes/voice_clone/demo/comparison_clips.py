"""The clips of the demo's evaluation, for each held-out sentence: the recording, the same through the codec, and the speech of the base and
of the trained model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.data_prep.manifest import read_lines
from overtone.recipes.speech.evaluation.evaluation_folder import CLIPS, JSON
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC, slug

BEFORE, AFTER = "before", "after"
SPOKEN = (RECORDINGS, THROUGH_CODEC, BEFORE, AFTER)


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


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [row for _, row in read_lines(path)]


def _format_title(system: str) -> str:
    return system if system in SPOKEN else BEFORE if system.endswith("zero-shot") else AFTER


def _get_key(clip: dict[str, Any]) -> str:
    return str(clip["key"])


def _make_clip(clip: dict[str, Any], evaluation: Path, real: dict[str, Path]) -> ComparisonClip:
    text, system = clip["text"], clip["system"]
    path = real[text] if system == RECORDINGS else evaluation / CLIPS / slug(system) / f"{clip['key']}.flac"
    return ComparisonClip(text, (clip["heard"] or "").strip(), path, real[text])
