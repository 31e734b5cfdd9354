"""The output folder of `--text-file`: one wav per line, and `manifest.jsonl`, with which a later run skips finished lines.

A manifest row: `line`, `text`, `speaker`, `reference`, `language`, `file`, `seconds`, `ended` (false: cut off), `seed`, `key`. The key is a
digest of everything that determines the audio. A line with the same key whose wav exists is not spoken again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from overtone.finetune.storage import files, strict_json
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
from overtone.finetune.storage.text_lines import read_lines
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.speech.marked_audio_encoding import encode_marked_wav
from overtone.recipes.speech.text_inputs import TextLine

MANIFEST = "manifest.jsonl"


def compute_line_key(request: SpeechRequest, sampling: SpeechSampling, model: str) -> str:
    """Digest of everything that determines the audio: the request with the content of its reference clip, the sampling, and the model."""
    reference = files.digest(request.reference) if request.reference is not None else None
    facts = [asdict(request) | {"reference": reference}, asdict(sampling), model]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_manifest(folder: Path) -> dict[int, dict[str, object]]:
    """Line number → its last row in the manifest. An incomplete last row, left by a killed run, is ignored."""
    path = folder / MANIFEST
    rows: dict[int, dict[str, object]] = {}
    for line in read_lines(path) if path.is_file() else []:
        try:
            row = strict_json.loads(line)
            rows[row["line"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def write_line(
    folder: Path, line: TextLine, request: SpeechRequest, spoken: SpeechResult, seed: int, key: str, model: str
) -> dict[str, object]:
    """Write the wav of a line, then its manifest row, so that no row names a missing wav. `request`: the line's, with the speaker and the
    language that it was spoken in. `model`: the model's name, for the mark of the wav."""
    files.write_bytes(folder / line.name, encode_marked_wav(spoken.wave, spoken.rate, SyntheticMark(model)))
    row = {
        "line": line.number,
        "text": request.text,
        "speaker": request.speaker,
        "reference": None if request.reference is None else str(request.reference),
        "language": request.language,
        "file": line.name,
        "seconds": round(len(spoken.wave) / spoken.rate, 3),
        "ended": spoken.ended,
        "seed": seed,
        "key": key,
    }
    files.append_line(folder / MANIFEST, json.dumps(row, ensure_ascii=False))
    return row


def write_manifest(folder: Path, rows: dict[int, dict[str, object]]) -> None:
    """Rewrite the manifest in line order, without rows of lines that the text file no longer has."""
    files.write_jsonl(folder / MANIFEST, (rows[number] for number in sorted(rows)))
