"""The recipe state of a speech model, from which an export writes voices.json: speakers, data and base."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from overtone.finetune.config import Data, Model

from .training_files import describe_training_files, list_training_files
from .voices_json_schema import BaseModelName, TrainedSpeaker, TrainingData


def describe_training_data(data: Data, speakers: Sequence[TrainedSpeaker]) -> TrainingData:
    """The training files of a run, with the clips of its speakers."""
    name, sha256 = describe_training_files(list_training_files(data))
    return TrainingData(name=name, sha256=sha256, clips=sum(speaker.clips for speaker in speakers))


def describe_base(model: Model) -> BaseModelName:
    """The base model of a run, without folders of this machine."""
    return BaseModelName(name=shorten_source(str(model.source)), revision=model.revision)


def shorten_source(source: str) -> str:
    """A hub name unchanged; for a folder, its last part."""
    on_hub = source.count("/") == 1 and not source.startswith((".", "/")) and not Path(source).is_dir()
    return source if on_hub else Path(source).name
