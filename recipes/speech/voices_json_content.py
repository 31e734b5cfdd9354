"""The recipe state of a speech model, from which an export writes voices.json: speakers, data and base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overtone.finetune.config import Config

from .training_files import describe_training_files, list_training_files


def make_voices_state(config: Config, speakers: list[dict[str, Any]]) -> dict[str, Any]:
    """What an export and its model card need, as JSON. A resumed run must have the same state. `speakers`: each as
    `voices_json_schema.TrainedSpeaker`."""
    return {
        "speakers": speakers,
        "data": describe_training_files(list_training_files(config)) | {"clips": sum(speaker["clips"] for speaker in speakers)},
        "base": {"name": shorten_source(str(config.model.source)), "revision": config.model.revision},
    }


def shorten_source(source: str) -> str:
    """A hub name unchanged; for a folder, its last part."""
    on_hub = source.count("/") == 1 and not source.startswith((".", "/")) and not Path(source).is_dir()
    return source if on_hub else Path(source).name
