"""Datasets on the hub by name: which of their files belong to which configuration and split; only these are downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from data_prep.hub_dataset_configs import DataFiles, match_pattern, read_configurations
from finetune.errors import UserError
from finetune.storage.model_resolver import find_dataset_card, resolve_dataset

OTHER_SPLITS = re.compile(r"(^|[/_.-])(test|testing|validation|valid|dev|val|eval|evaluation)([-_./]|$)", re.IGNORECASE)
"""Matches the path of a file, or the name of a split, that is not training data."""
TRAIN_SPLIT = "train"
NAMED_TRAINING = re.compile(r"(?:^|/)(train_\w+)-\d+-of-\d+\.")
"""Matches a file of one of several training splits, as `datasets` names it: `data/train_sft-00000-of-00003.parquet`."""
NO_DATA = frozenset(
    {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    | {"dataset_info.json", "dataset_infos.json", "package.json", "package-lock.json"}
)
"""Names of JSON files beside data that describe it, a model or a program, and hold no rows."""


class DatasetFile(NamedTuple):
    """A downloaded file of a dataset."""

    path: Path
    name: str
    """Path in the repository."""
    split: str


def download_dataset_files(option: str, dataset: str, patterns: Sequence[str], configs: Sequence[str]) -> list[DatasetFile] | None:
    """The data files of a dataset on the hub that match `patterns`, by name; None if `dataset` is a path.

    `configs`: the configurations to read. Raises `UserError`, in the name of the flag `option`, for a dataset with several
    configurations of which none is chosen, and for one that it does not have.
    """
    card = find_dataset_card(option, dataset)
    declared = read_configurations(card) if card else {}
    wanted = choose_configurations(option, dataset, list(declared), configs) if declared else []
    entries = [entry for name in wanted for entry in declared[name]]
    folder = resolve_dataset(option, dataset, [entry.pattern for entry in entries] or patterns)
    if folder == Path(dataset):
        return None
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if name.rpartition("/")[2] not in NO_DATA and any(_ends_like(name, each) for each in patterns)]
    if entries:
        return [DatasetFile(folder / name, name, split) for name in names if (split := _find_split(name, entries))]
    folders = list_configuration_folders(names)
    chosen = choose_configurations(option, dataset, folders, configs)
    return [
        DatasetFile(folder / name, name, _guess_split(name)) for name in names if not folders or name.partition("/")[0] in (*chosen, name)
    ]


def choose_configurations(option: str, dataset: str, known: Sequence[str], configs: Sequence[str]) -> Sequence[str]:
    """The configurations to read: `configs`, or the only one. Raises `UserError` with all of them if that is not one of several."""
    if missing := [name for name in configs if name not in known]:
        raise UserError(
            f"--config {missing[0]}: {option} {dataset} has no such configuration; it has {', '.join(known) or 'only the default one'}"
        )
    if len(known) > 1 and not configs:
        raise UserError(f"{option} {dataset} has several configurations: {', '.join(known)}; choose with --config NAME")
    return configs or known


def choose_splits(option: str, dataset: str, known: Sequence[str], splits: Sequence[str]) -> Sequence[str]:
    """The splits to read: `splits`, or the only one. Raises `UserError` with all of them if that is not one of several."""
    if missing := [name for name in splits if name not in known]:
        raise UserError(f"--split {missing[0]}: {option} {dataset} has no such split; it has {', '.join(known)}")
    if len(known) > 1 and not splits:
        raise UserError(f"{option} {dataset} has several splits: {', '.join(known)}; choose with --split NAME, once or more")
    return splits or known


def _find_split(name: str, entries: list[DataFiles]) -> str:
    """The split of a file by the patterns of a card; empty for a file of another configuration."""
    entry = next((entry for entry in entries if match_pattern(entry.pattern, name)), None)
    return (entry.split or _guess_split(name)) if entry else ""


def _guess_split(name: str) -> str:
    """`data/validation-00000.parquet` → `validation`; `train` for a name without a split."""
    if training := NAMED_TRAINING.search(name):
        return training[1]
    found = OTHER_SPLITS.search(name)
    return found[2].lower() if found else TRAIN_SPLIT


def _ends_like(name: str, pattern: str) -> bool:
    return name.lower().endswith(pattern.lstrip("*"))


def list_configuration_folders(names: list[str]) -> list[str]:
    """Top-level folders that each hold the same splits under the same names, as `main/train.parquet` and `other/train.parquet`."""
    below: dict[str, set[str]] = {}
    for name in names:
        folder, _, rest = name.partition("/")
        below.setdefault(folder if rest else "", set()).add(rest or folder)
    folders = [folder for folder in below if folder and not OTHER_SPLITS.search(folder) and folder != TRAIN_SPLIT]
    same_splits = len(folders) > 1 and "" not in below and bool(set.intersection(*(below[folder] for folder in folders)))
    return sorted(folders) if same_splits else []
