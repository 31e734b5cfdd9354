"""Content-addressed cache of stage results.

A result is stored in `<folder>/<stage>/<key>.json`; the key is a digest of all inputs of the stage: recording, weights, parameters. A
killed run resumes from the stored results; other parameters give other keys.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from finetune.storage import files, input_files

T = TypeVar("T")


class NotStoredError(Exception):
    """A result is not stored, and computing it is disabled."""


def make_key(inputs: dict[str, Any]) -> str:
    """SHA-256 hex digest of a JSON value, independent of the order of its keys."""
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
        inputs: dict[str, Any],
        kind: TypeAdapter[T],
        compute: Callable[[], T],
        still_there: Callable[[T], bool] = lambda _result: True,
    ) -> T:
        """The stored result of `stage` for `inputs`, or a newly computed one. `still_there`: whether the files that it names exist."""
        path = self.folder / stage / f"{make_key(inputs)}.json"
        stored = _read_result(path, kind)
        if stored is not None and still_there(stored):
            self.reused[stage] += 1
            return stored
        result = self._compute_result(compute)
        files.write_bytes(path, kind.dump_json(result))
        self.computed[stage] += 1
        return result

    def _compute_result(self, compute: Callable[[], T]) -> T:
        return compute()


class StoredStages(Stages):
    """Read-only cache: a result that is not stored raises `NotStoredError`."""

    def _compute_result(self, compute: Callable[[], T]) -> T:  # noqa: ARG002 - never computes
        raise NotStoredError


def _read_result(path: Path, kind: TypeAdapter[T]) -> T | None:
    """The stored result; None if missing, damaged, or written by an incompatible version."""
    try:
        return kind.validate_json(input_files.read_bytes(path))
    except (FileNotFoundError, ValidationError):
        return None
