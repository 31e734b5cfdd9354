"""The folder of many spoken texts: a wav a line, and `manifest.jsonl`, which tells what each is and lets a second run go on.

A row: `line`, `text`, `speaker`, `reference`, `language`, `file`, `seconds`, `ended` (false: cut off), `seed`, `key`. The key is a digest
of all that decides the sound; a line whose key is the same and whose wav is there is not spoken again.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.storage import files, strict_json

from ..inference.exported_model import Exported
from ..inference.synthesizer import Request, Spoken
from ..model.sampling_settings import Sampling
from .text_inputs import Line

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "manifest.jsonl"
HEADER = 44
"""Bytes before the samples of a PCM wav."""


def wav(wave: np.ndarray, rate: int) -> bytes:
    """16-bit PCM."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, wave, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def key_of(request: Request, sampling: Sampling, model: str) -> str:
    """Digest of what decides the sound: the request with its reference's content, the sampling, the model."""
    reference = files.digest(request.reference) if request.reference is not None else None
    facts = [asdict(request) | {"reference": reference}, asdict(sampling), model]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def model_key(exported: Exported) -> str:
    """Changes with the model, without reading its weights: names, sizes and times of its files, the change time among them."""
    stats = [(path.name, path.stat()) for path in sorted(exported.folder.rglob("*")) if path.is_file()]
    found = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def made(folder: Path) -> dict[int, dict[str, Any]]:
    """The rows of a manifest by their line, the latest of each; a torn last line, of a run that was killed, is left out."""
    path = folder / MANIFEST
    rows: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            row = strict_json.loads(line)
            rows[row["line"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def keep(folder: Path, line: Line, spoken: Spoken, exported: Exported, sampling: Sampling, key: str) -> dict[str, Any]:
    """Write a line's wav, then its row: a row never speaks of a wav that is not there."""
    request = line.request
    speaker = exported.speaker(request.speaker) if request.reference is None else None
    files.write_bytes(folder / line.name, wav(spoken.wave, spoken.rate))
    row = {
        "line": line.number,
        "text": request.text,
        "speaker": speaker,
        "reference": None if request.reference is None else str(request.reference),
        "language": exported.language(request.language, speaker),
        "file": line.name,
        "seconds": round(len(spoken.wave) / spoken.rate, 3),
        "ended": spoken.ended,
        "seed": sampling.seed,
        "key": key,
    }
    files.append_line(folder / MANIFEST, json.dumps(row, ensure_ascii=False))
    return row


def settle(folder: Path, rows: dict[int, dict[str, Any]]) -> None:
    """The manifest in the order of the lines, without what a changed text file has no more."""
    files.write_jsonl(folder / MANIFEST, (rows[number] for number in sorted(rows)))
