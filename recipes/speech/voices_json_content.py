"""The recipe state of a speech model, of which an export makes voices.json: speakers, data and base."""

from __future__ import annotations

from typing import Any

from finetune.config import Config

from .dataset_rows import describe_training_files, list_training_files, shorten_source


def make_voices_state(config: Config, speakers: list[dict[str, Any]]) -> dict[str, Any]:
    """What an export and its model card need, as JSON. A resumed run must have the same state. `speakers`: each as
    `voices_json_schema.TrainedSpeaker`."""
    return {
        "speakers": speakers,
        "data": describe_training_files(list_training_files(config)) | {"clips": sum(speaker["clips"] for speaker in speakers)},
        "base": {"name": shorten_source(str(config.model.source)), "revision": config.model.revision},
    }
