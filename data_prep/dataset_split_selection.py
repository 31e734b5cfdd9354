"""Chooses the configurations and splits of a dataset to read, and finds the split of a file from a card's patterns or from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from overtone.data_prep.hub_dataset_configs import DataFiles, match_pattern
from overtone.finetune.errors import UserError

OTHER_SPLITS = re.compile(r"(^|[/_.-])(test|testing|validation|valid|dev|val|eval|evaluation)([-_./]|$)", re.IGNORECASE)
"""Matches the path of a file, or the name of a split, that is not training data."""
TRAIN_SPLIT = "train"
NAMED_TRAINING = re.compile(r"(?:^|/)(train_\w+)-\d+-of-\d+\.")
"""Matches a file of one of several training splits, as `datasets` names it: `data/train_sft-00000-of-00003.parquet`."""


def choose_configurations(option: str, dataset: str, known: Sequence[str], configs: Sequence[str]) -> Sequence[str]:
    """Return the configurations to read: `configs`, or the only one. Raises `UserError` with all of them if that is not one of several."""
    if missing := [name for name in configs if name not in known]:
        raise UserError(
            f"--config {missing[0]}: {option} {dataset} has no such configuration; it has {', '.join(known) or 'only the default one'}"
        )
    if len(known) > 1 and not configs:
        raise UserError(f"{option} {dataset} has several configurations: {', '.join(known)}; choose with --config NAME")
    return configs or known


def choose_splits(option: str, dataset: str, known: Sequence[str], splits: Sequence[str]) -> Sequence[str]:
    """Return the splits to read: `splits`, or the only one. Raises `UserError` with all of them if that is not one of several."""
    if missing := [name for name in splits if name not in known]:
        raise UserError(f"--split {missing[0]}: {option} {dataset} has no such split; it has {', '.join(known)}")
    if len(known) > 1 and not splits:
        raise UserError(f"{option} {dataset} has several splits: {', '.join(known)}; choose with --split NAME, once or more")
    return splits or known


def find_split(name: str, entries: list[DataFiles]) -> str:
    """Return the split of a file by the patterns of a card; empty for a file of another configuration."""
    entry = next((entry for entry in entries if match_pattern(entry.pattern, name)), None)
    return (entry.split or guess_split(name)) if entry else ""


def guess_split(name: str) -> str:
    """Return the split in the name of a file: `data/validation-00000.parquet` → `validation`; `train` for a name without a split."""
    if training := NAMED_TRAINING.search(name):
        return training[1]
    found = OTHER_SPLITS.search(name)
    return found[2].lower() if found else TRAIN_SPLIT


def list_configuration_folders(names: list[str]) -> list[str]:
    """Return the top-level folders that each hold the same splits under the same names, as `main/train.parquet` and
    `other/train.parquet`."""
    below: dict[str, set[str]] = {}
    for name in names:
        folder, _, rest = name.partition("/")
        below.setdefault(folder if rest else "", set()).add(rest or folder)
    folders = [folder for folder in below if folder and not OTHER_SPLITS.search(folder) and folder != TRAIN_SPLIT]
    same_splits = len(folders) > 1 and "" not in below and bool(set.intersection(*(below[folder] for folder in folders)))
    return sorted(folders) if same_splits else []
