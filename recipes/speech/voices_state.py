"""The recipe state of a speech model: its speakers, their data and its base, which `prepare` finds and the cache of the run keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.config import Config
from finetune.errors import UserError
from finetune.storage import files
from finetune.storage.strict_json import loads_object

from .dataset_rows import describe_training_files, list_training_files, shorten_source


def make_voices_state(config: Config, speakers: list[dict[str, Any]]) -> dict[str, Any]:
    """What an export and its model card need, as JSON. A resumed run must have the same state. `speakers`: each as
    `voices_schema.TrainedSpeaker`."""
    return {
        "speakers": speakers,
        "data": describe_training_files(list_training_files(config)) | {"clips": sum(speaker["clips"] for speaker in speakers)},
        "base": {"name": shorten_source(str(config.model.source)), "revision": config.model.revision},
    }


def store_state(config: Config, state: dict[str, Any]) -> None:
    """Write a recipe state into the run's cache."""
    files.write_bytes(_cache_path(config), files.json_bytes(state))


def load_state(config: Config) -> dict[str, Any]:
    """The recipe state that `store_state` wrote for this run. Raises `UserError` if it is missing."""
    path = _cache_path(config)
    try:
        return loads_object(path.read_bytes())
    except (OSError, UserError) as error:
        raise UserError(f"{path} is missing or damaged; training writes it when it starts, so start the training again") from error


def _cache_path(config: Config) -> Path:
    return config.run.dir / "cache" / "speakers.json"
