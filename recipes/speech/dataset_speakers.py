"""The speakers of a run's training data, with the clips of each; every speaker of the validation data has to be one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from overtone.data_prep import manifest
from overtone.finetune.config import Data
from overtone.finetune.data.jsonl_rows import visit_rows
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.recipes.speech.evaluation.evaluation_items import HOW_TO_MAKE_ROWS

from .dataset_row_checks import check_is_speech, find_speaker_name
from .training_files import list_training_files, list_validation_files
from .voices_json_schema import SpeakerOfLanguage


@dataclass
class SpeakerClips:
    """The clips of one speaker."""

    clips: int = 0
    frames: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    """English names in lower case."""


def collect_clips(data: Data, recipe: str, default: str | None, count_frames: Callable[[Row], int]) -> dict[str, SpeakerClips]:
    """The clips of each speaker of `data.train`, by name in order. `count_frames` checks a row's codes and returns their number of frames.
    Otherwise as `visit_speakers`."""
    found: dict[str, SpeakerClips] = {}

    def add_row(_: Path, name: str, row: Row) -> None:
        frames, language = count_frames(row), str(row.get("language") or manifest.AUTO).strip().lower()
        speaker = found.setdefault(name, SpeakerClips())
        if row.get("time_shift") is None:  # a copy adds no speech
            speaker.clips += 1
            speaker.frames += frames
        speaker.languages[manifest.LANGUAGES.get(language, language)] += 1

    visit_speakers(data, recipe, default, add_row)
    return dict(sorted(found.items()))


def list_speakers(found: Mapping[str, SpeakerClips], frame_rate: float) -> list[SpeakerOfLanguage]:
    """The speakers for a recipe's state, each with the language of most of its clips. `frame_rate`: frames per second."""
    return [
        SpeakerOfLanguage(
            name=name, language=clips.languages.most_common(1)[0][0], clips=clips.clips, seconds=round(clips.frames / frame_rate, 2)
        )
        for name, clips in found.items()
    ]


def visit_speakers(data: Data, recipe: str, default: str | None, add_row: Callable[[Path, str, Row], None]) -> None:
    """Call `add_row` with folder, speaker and content of each row of `data.train`, for the recipe of this name. `default` is the speaker of
    rows without one.

    Raises `UserError` with file and line for bad rows, and for speakers who are only in `data.val`.
    """
    trained = list_training_files(data)
    if not trained:
        raise UserError(
            "data.train is not set: give the JSONL to train on, as in --data.train data/me/train.jsonl. "
            "`overtone voice RECORDINGS --out data/me --speaker me` creates one from recordings; `make demo` shows all steps"
        )
    names: dict[str, None] = {}

    def visit_row(root: Path, _: int, row: Row) -> None:
        check_is_speech(row, recipe)
        name = find_speaker_name(row, default)
        names[name] = None
        add_row(root, name, row)

    for train in trained:
        visit_rows(train, partial(visit_row, train.parent), HOW_TO_MAKE_ROWS)
    for val in list_validation_files(data):
        visit_rows(val, lambda _, row: require_trained(find_speaker_name(row, default), names), HOW_TO_MAKE_ROWS)


def require_trained(name: str, trained: Collection[str]) -> None:
    """Raises `UserError` for a speaker of the validation data who is not in the training data."""
    if name not in trained:
        known = ", ".join(sorted(trained))
        raise UserError(f"speaker {name!r} is not trained: the training data has only {known}; remove the row")
