"""The labels of a run: found in the training data, in a fixed order."""

from __future__ import annotations

from overtone.finetune.config import Config, on_disk
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage import input_files, strict_json

from .options import Options

MOST_LABELS = 100_000
"""More are hardly labels, but names of files or captions."""


def read_label(row: Row) -> str:
    """The label of a row. Raises `UserError` unless it is a name."""
    label = row.get("label")
    if not isinstance(label, str) or not label.strip():
        raise UserError(f'"label" must be the name of a class, found {label!r:.60}')
    return label


def collect_labels(config: Config[Options]) -> list[str]:
    """The labels of all training files in order: by number if all are numbers, else by name. Invalid rows are passed over here, because the
    index reports them with their lines. Raises `UserError` for fewer than two labels."""
    found: set[str] = set()
    for path in map(on_disk, config.data.training_files()):
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
            f'{config.data.name_training_data()} has {len(found):,} different values of "label"; a classifier needs 2 to {MOST_LABELS:,}'
        )
    are_numbers = all(label.isascii() and label.isdigit() for label in found)
    return sorted(found, key=lambda label: (int(label) if are_numbers else 0, label))


def choose_labels(config: Config[Options], of_base: list[str]) -> list[str]:
    """The labels of the model in the order of its outputs: those of the data, or those of the base (`options.head`). Raises `UserError` if
    the base's do not include those of the data."""
    labels = collect_labels(config)
    if config.options.head == "fresh":
        return labels
    if unknown := [label for label in labels if label not in of_base]:
        known = ", ".join(map(repr, of_base[:5]))
        raise UserError(
            f"options.head: base, but the base does not know the label {unknown[0]!r} ({len(unknown)} such labels; it has {known}, …); "
            "use options.head: fresh"
        )
    return of_base
