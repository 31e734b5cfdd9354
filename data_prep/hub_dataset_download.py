"""Downloads the data files of the chosen configurations of a dataset on the hub, and returns each with its split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.dataset_split_selection import choose_configurations, find_split, guess_split, list_configuration_folders
from overtone.data_prep.hub_dataset_configs import read_configurations
from overtone.finetune.storage.model_resolver import find_dataset_card, resolve_dataset

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
    """Return the data files of a dataset on the hub that match `patterns`, by name; None if `dataset` is a path.

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
    names = [
        name
        for name in names
        if name.rpartition("/")[2] not in NO_DATA and any(name.lower().endswith(each.lstrip("*")) for each in patterns)
    ]
    if entries:
        return [DatasetFile(folder / name, name, split) for name in names if (split := find_split(name, entries))]
    folders = list_configuration_folders(names)
    chosen = choose_configurations(option, dataset, folders, configs)
    return [
        DatasetFile(folder / name, name, guess_split(name)) for name in names if not folders or name.partition("/")[0] in (*chosen, name)
    ]
