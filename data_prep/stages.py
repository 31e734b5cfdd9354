"""Work that is done once: results of stages, kept by the content that they were made from.

A result lies in `<folder>/<stage>/<key>.json`, where the key is a digest of everything that the stage read: the recording, the weights, the
parameters. A run that was killed anywhere continues with what is there; a run with other parameters makes other keys.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from finetune import files

T = TypeVar("T")


class NotStoredError(Exception):
    """A result is not there yet, and was not to be computed."""


def key_of(inputs: dict[str, Any]) -> str:
    """Hex digest of a JSON value; equal values give equal keys whatever the order of their entries."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Stages:
    """Owns the folder of the results, and counts what was computed and what was there."""

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
        """The stored result of `stage` for `inputs`, or a new one. `still_there`: whether files that the result names exist yet."""
        path = self.folder / stage / f"{key_of(inputs)}.json"
        stored = _read(path, kind)
        if stored is not None and still_there(stored):
            self.reused[stage] += 1
            return stored
        result = self._new(compute)
        files.write_bytes(path, kind.dump_json(result))
        self.computed[stage] += 1
        return result

    def _new(self, compute: Callable[[], T]) -> T:
        return compute()


class Memory(Stages):
    """Only what is stored: anything else raises `NotStoredError`."""

    def _new(self, compute: Callable[[], T]) -> T:  # noqa: ARG002 - that is the point
        raise NotStoredError


def _read(path: Path, kind: TypeAdapter[T]) -> T | None:
    """A result that another version wrote, or that a failing disk damaged, counts as none."""
    try:
        return kind.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
