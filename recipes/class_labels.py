"""The labels of a classifier: found in the training data, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from overtone.finetune.config import Data, on_disk
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage import input_files, strict_json

MOST_LABELS = 100_000
"""More are hardly labels, but names of files or captions."""


def read_label(row: Row) -> str:
    """The label of a row; that of a whole number is its digits. Raises `UserError` unless it is a name or a whole number."""
    label = row.get("label")
    if type(label) is int:
        return str(label)
    if not isinstance(label, str) or not label.strip():
        raise UserError(f'"label" must be the name of a class, found {label!r:.60}')
    return label


def find_label(row: Row, labels: Sequence[str]) -> int:
    """The index of a row's label among `labels`. Raises `UserError` for a row without a label, and for another one."""
    label = read_label(row)
    if label not in labels:
        raise UserError(f'"label" is {label!r:.60}, which is not among the {len(labels):,} labels of the training data')
    return labels.index(label)


def collect_labels(data: Data) -> list[str]:
    """The labels of all training files in order: by number if all are numbers, else by name. Invalid rows are passed over here, because the
    index reports them with their lines. Raises `UserError` for fewer than two labels."""
    found: set[str] = set()
    for path in map(on_disk, data.training_files()):
        assert path is not None  # the config has data.train or data.mix
        if not path.is_file():
            raise UserError(f"{path}: no such file; give data.train the path of a JSONL file")
        for line in filter(None, map(bytes.strip, input_files.read_lines(path))):
            try:
                found.add(read_label(strict_json.loads_object(line)))
            except UserError:
                continue
    if not 2 <= len(found) <= MOST_LABELS:
        raise UserError(
            f'{data.name_training_data()} has {len(found):,} different values of "label"; a classifier needs 2 to {MOST_LABELS:,}'
        )
    are_numbers = all(label.isascii() and label.isdigit() for label in found)
    return sorted(found, key=lambda label: (int(label) if are_numbers else 0, label))


def choose_labels(data: Data, of_base: list[str] | None) -> list[str]:
    """The labels of the model in the order of its outputs: those of the data, or with `options.head: base` those of the base, `of_base`.
    Raises `UserError` if these do not include those of the data."""
    labels = collect_labels(data)
    if of_base is None:
        return labels
    if unknown := [label for label in labels if label not in of_base]:
        known = ", ".join(map(repr, of_base[:5]))
        raise UserError(
            f"options.head: base, but the base does not know the label {unknown[0]!r} ({len(unknown)} such labels; it has {known}, …); "
            "use options.head: fresh"
        )
    return of_base
