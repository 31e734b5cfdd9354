"""The speakers in the dataset: number of clips, speech duration, language, reference clips, and rows in the codec embedding."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.config import Config, Data
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage.referenced_files import find_file
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds, find_language
from overtone.recipes.qwen3_tts.state import SpeakerRecord, VoiceCloneState
from overtone.recipes.speech.dataset_speakers import visit_speakers
from overtone.recipes.speech.voices_json_content import describe_base, describe_training_data

from ..options import Options

RESERVED_ROWS = 72
"""Rows at the end of the codec embedding that are reserved for new speakers: 3000 … 3071 of 3072 in the released models."""


@dataclass
class DatasetSpeaker:
    """One speaker, as found in the training data."""

    name: str
    """In lower case."""
    spellings: Counter[str] = field(default_factory=Counter)
    """Names in the rows, as they are written there."""
    clips: int = 0
    frames: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    named_references: dict[Path, None] = field(default_factory=dict)
    """Reference clips that rows name in `ref_audio`, in order of appearance."""
    own_clips: list[tuple[float, Path]] = field(default_factory=list)
    """(duration in seconds, path) of the speaker's own clips."""

    def select_references(self, count: int) -> list[Path]:
        """Up to `count` reference clips: the named ones, or else the speaker's longest. Clips of equal length are sorted by name, so that
        the choice is reproducible."""
        longest = [path for _, path in sorted(self.own_clips, key=lambda clip: (-clip[0], str(clip[1])))]
        return (list(self.named_references) or list(dict.fromkeys(longest)))[:count]

    @property
    def language(self) -> str | None:
        """The most frequent language of the clips; None if most have none."""
        return (self.languages.most_common(1)[0][0] or None) if self.languages else None


def collect_speakers(data: Data, default: str | None, ids: TokenIds) -> list[DatasetSpeaker]:
    """All speakers of the training files, sorted by name. `default`: the speaker of rows without one. Raises `UserError` with file and
    line for bad rows, and for speakers who are only in `data.val`."""
    speakers: dict[str, DatasetSpeaker] = {}

    def add_row(root: Path, name: str, row: Row) -> None:
        speaker = speakers.setdefault(name, DatasetSpeaker(name))
        speaker.spellings[str(row.get("speaker") or default)] += 1
        _add_clip(speaker, row, root, ids)

    visit_speakers(data, "voice_clone", default, add_row)
    return [speakers[name] for name in sorted(speakers)]


def _add_clip(speaker: DatasetSpeaker, row: Row, root: Path, ids: TokenIds) -> None:
    """Count one row for its speaker."""
    codes = row.get("audio_codes")
    if not isinstance(codes, list):
        raise UserError(f"the row has no audio_codes; run `{overtone_command('codes', root, '--model', 'MODEL')}` first")
    if row.get("time_shift") is None:  # a copy adds no speech
        speaker.clips += 1
        speaker.frames += len(codes)
    speaker.languages[find_language(row, ids) or ""] += 1
    if row.get("ref_audio"):
        speaker.named_references[find_file(root, str(row["ref_audio"]))] = None
    elif row.get("audio"):
        speaker.own_clips.append((len(codes) / FRAME_RATE, find_file(root, str(row["audio"]))))
    else:
        raise UserError("the row has neither audio nor ref_audio, so there is no clip to compute the speaker vector from; add one of them")


def describe_renamed(speakers: list[DatasetSpeaker]) -> list[str]:
    """A sentence for each speaker whose name in the rows is not the one in the model."""
    return [
        f"speaker {spelling!r} is called {speaker.name!r} in the model, whose names are in lower case"
        for speaker in speakers
        for spelling in sorted({*speaker.spellings} - {speaker.name})
    ]


def assign_embedding_rows(shape: dict[str, Any], names: list[str]) -> dict[str, int]:
    """Name → row of the codec embedding: its row in the base if the base has this speaker, else the next free reserved row.

    Raises `UserError` if there are too few free rows.
    """
    talker = shape["talker_config"]
    presets: dict[str, int] = {name.lower(): row for name, row in (talker.get("spk_id") or {}).items()}
    first, end = talker["vocab_size"] - RESERVED_ROWS, talker["vocab_size"]
    free = iter(sorted(set(range(first, end)) - set(presets.values())))
    assigned = {name: presets[name] if name in presets else next(free, None) for name in names}
    without_row = [name for name, row in assigned.items() if row is None]
    if without_row:
        raise UserError(
            f"no free row for {len(without_row)} of {len(names)} speakers (the first is {without_row[0]!r}): rows {first} … {end - 1} of "
            f"the codec embedding are for speakers, and the base already has {len(presets)} speakers; train on fewer"
        )
    return {name: row for name, row in assigned.items() if row is not None}


def make_recipe_state(config: Config[Options], speakers: list[DatasetSpeaker], embedding_rows: dict[str, int]) -> VoiceCloneState:
    """Return what the export and its model card need. A resumed run must have the same state."""
    use_language = config.options.language == "row"
    records = [
        SpeakerRecord(
            name=speaker.name,
            row=embedding_rows[speaker.name],
            language=speaker.language if use_language else None,
            clips=speaker.clips,
            seconds=round(speaker.frames / FRAME_RATE, 2),
        )
        for speaker in speakers
    ]
    return VoiceCloneState(speakers=records, data=describe_training_data(config.data, records), base=describe_base(config.model))
