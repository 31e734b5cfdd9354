"""Content-addressed cache of stage results.

A result is stored in `<folder>/<stage>/<key>.json`; the key is a digest of all inputs of the stage: recording, weights, parameters. A
killed run resumes from the stored results; other parameters give other keys.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from string import hexdigits
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from overtone.finetune.storage import files, input_files

T = TypeVar("T")


STAGES = {
    "alignment": "the alignment of clips with their texts",
    "clips": "the cutting and measuring of clips",
    "divided_at_voices": "the alignment at changes of the voice",
    "levels": "the measuring of levels",
    "located": "the alignment of the recording with its text",
    "sound_quality": "the rating of sound",
    "speech": "the detection of speech",
    "voice_windows": "the speaker encoder",
    "voices": "the speaker encoder",
    "words": "the transcription",
}
"""Stage → its task, for messages."""
MODELS = ("aligner", "encoder", "networks")
"""Keys of inputs that identify a model."""


class NotStoredError(Exception):
    """A result is not stored, and computing it is disabled."""


def make_key(inputs: Mapping[str, object]) -> str:
    """Return the SHA-256 hex digest of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Stages:
    """Owns the folder of results; counts computed and reused results per stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.computed: Counter[str] = Counter()
        self.reused: Counter[str] = Counter()

    def run(
        self,
        stage: str,
        inputs: Mapping[str, object],
        kind: TypeAdapter[T],
        compute: Callable[[], T],
        still_there: Callable[[T], bool] = lambda _result: True,
    ) -> T:
        """Return the stored result of `stage` for `inputs`, or a newly computed one. `still_there`: returns whether the files that it names
        exist."""
        path = self.folder / stage / f"{make_key(inputs)}.json"
        stored = _read_result(path, kind)
        if stored is not None and still_there(stored):
            self.reused[stage] += 1
            return stored
        try:
            result = self._compute_result(compute)
        except Exception as error:
            # Name the model that failed: a message such as "list index out of range" does not. The names of the inputs identify it.
            error.add_note(f"in {STAGES.get(stage, stage)}{_name_model(inputs)}")
            raise
        files.write_bytes(path, kind.dump_json(result))
        self.computed[stage] += 1
        return result

    def _compute_result(self, compute: Callable[[], T]) -> T:
        return compute()


class StoredStages(Stages):
    """Read-only cache: a result that is not stored raises `NotStoredError`."""

    def _compute_result(self, compute: Callable[[], T]) -> T:  # noqa: ARG002 - never computes
        raise NotStoredError


def _name_model(inputs: Mapping[str, object]) -> str:
    """Return ` by pocketsphinx-5.0.4`, as far as the inputs of a stage name a model."""
    hearing = inputs.get("hearing")
    name = str(hearing.get("name", "")) if isinstance(hearing, dict) else next((str(inputs[key]) for key in MODELS if key in inputs), "")
    name = name.partition(",")[0]
    return f" by {name}" if name and not set(name) <= set(hexdigits) else ""  # some are identified by a digest alone


def _read_result(path: Path, kind: TypeAdapter[T]) -> T | None:
    """Return the stored result; None if missing, damaged, or written by an incompatible version."""
    try:
        return kind.validate_json(input_files.read_bytes(path))
    except (FileNotFoundError, ValidationError):
        return None
