"""The labels of a classifier: found in the training data, in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.config import Data, on_disk
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage import input_files, strict_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MOST_LABELS = 100_000
"""More are hardly labels, but names of files or captions."""
WHOLE_NUMBER = re.compile(r"-?[0-9]+")


def read_label(row: Row) -> str:
    """The label of a row; that of a whole number is its digits. Raises `UserError` unless it is a name or a whole number."""
    label = row.get("label")
    if type(label) is int:
        return str(label)
    if not isinstance(label, str) or not label.strip():
        raise UserError(f'"label" must be the name of a class, found {label!r:.60}; write a text in quotes or a whole number')
    return label


def find_label(row: Row, labels: Sequence[str], owner: str = "the training data") -> int:
    """The index of a row's label among `labels`, those of `owner`. Raises `UserError` for a row without a label, and for another one."""
    label = read_label(row)
    try:
        return labels.index(label)
    except ValueError:
        raise UserError(f'"label" is {label!r:.60}, which is not among the {len(labels):,} labels of {owner}') from None


def collect_labels(data: Data) -> list[str]:
    """The labels of all training files in order: by number if all are whole numbers, else by name. Invalid rows are skipped here, because
    the index reports them with their lines. Raises `UserError` for fewer than two labels, and names the first invalid row."""
    found, invalid = set[str](), ""
    for path in map(on_disk, data.training_files()):
        assert path is not None  # the config has data.train or data.mix
        if not path.is_file():
            raise UserError(f"{path}: no such file; give data.train the path of a JSONL file")
        for number, line in enumerate(input_files.read_lines(path), 1):
            if not line.strip():
                continue
            try:
                found.add(read_label(strict_json.loads_object(line.strip())))
            except UserError as error:
                invalid = invalid or f"; the first invalid row is {path}:{number}: {error}"
    if not 2 <= len(found) <= MOST_LABELS:
        raise UserError(
            f'{data.name_training_data()} has {len(found):,} different values of "label"; a classifier needs 2 to {MOST_LABELS:,}'
            f"{invalid if len(found) < 2 else ''}"
        )
    are_numbers = all(map(WHOLE_NUMBER.fullmatch, found))
    # Python refuses to convert a text of more than 4,300 digits to an int.
    return sorted(found, key=lambda label: (Decimal(label) if are_numbers else 0, label))


def read_base_labels(config: PretrainedConfig, base: Path) -> list[str]:
    """The labels of the outputs of `base` in order, from its `config`. Raises `UserError` if an output has none."""
    for number in range(config.num_labels):
        if number not in config.id2label:
            raise UserError(
                f"{base}/config.json: id2label has no name for output {number} of {config.num_labels:,}; number the names from 0"
            )
    return [str(config.id2label[number]) for number in range(config.num_labels)]


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
