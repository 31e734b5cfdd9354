"""Who speaks in the data, how much, in which language, and from which clips the voice is to be taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import on_disk
from finetune.errors import UserError
from finetune.storage import files
from recipes.speech.evaluation.evaluation_texts import visit_rows

from .model_configs import FRAME_RATE
from .sequence_layout import Ids, language_of, speaker_name

if TYPE_CHECKING:
    from finetune.config import Config

    from ..options import Options

RESERVED_ROWS = 72
"""Rows at the end of the codec embedding that are left to new speakers: 3000 … 3071 of 3072 in the released models."""


@dataclass
class Speaker:
    """What the training data says about one speaker."""

    name: str
    clips: int = 0
    frames: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    given: dict[Path, None] = field(default_factory=dict)
    """Reference clips that rows name, in order of appearance."""
    own: list[tuple[float, Path]] = field(default_factory=list)
    """(duration in seconds, path) of the speaker's own clips."""

    def references(self, count: int) -> list[Path]:
        """The named reference clips, or else the speaker's longest; of equally long ones the first by name, so that the choice stays."""
        longest = [path for _, path in sorted(self.own, key=lambda clip: (-clip[0], str(clip[1])))]
        return (list(self.given) or list(dict.fromkeys(longest)))[:count]

    @property
    def language(self) -> str | None:
        """The language of most clips; None if most name none."""
        return (self.languages.most_common(1)[0][0] or None) if self.languages else None


def survey(config: Config[Options], ids: Ids) -> list[Speaker]:
    """All speakers of `data.train`, by name."""
    options = config.options
    train, val = on_disk(config.data.train), on_disk(config.data.val)
    if train is None:
        raise UserError(
            "data.train is not set: give the JSONL to train on, as in --data.train data/me/train.jsonl. "
            "`python -m data_prep voice RECORDINGS --out data/me --speaker me` makes one from recordings; `make demo` shows the whole chain"
        )
    root, default = train.parent, options.speaker
    found: dict[str, Speaker] = {}

    def meet(row: dict[str, Any]) -> None:
        name = speaker_name(row, default)
        _count(found.setdefault(name, Speaker(name)), row, root, ids)

    visit_rows(train, meet)
    if val is not None:
        visit_rows(val, lambda row: _require_trained(speaker_name(row, default), found))
    return [found[name] for name in sorted(found)]


def _count(speaker: Speaker, row: dict[str, Any], root: Path, ids: Ids) -> None:
    codes = row.get("audio_codes")
    if not isinstance(codes, list):
        raise UserError(f"the row has no audio_codes; run `python -m data_prep codes {root} --model MODEL` first")
    speaker.clips += 1
    speaker.frames += len(codes)
    speaker.languages[language_of(row, ids) or ""] += 1
    if row.get("ref_audio"):
        speaker.given[files.resolve_under(root, row["ref_audio"])] = None
    elif row.get("audio"):
        speaker.own.append((len(codes) / FRAME_RATE, files.resolve_under(root, row["audio"])))
    else:
        raise UserError("the row has neither audio nor ref_audio, so there is nothing to hear the speaker from; add one of them")


def _require_trained(name: str, trained: dict[str, Speaker]) -> None:
    if name not in trained:
        known = ", ".join(sorted(trained))
        raise UserError(f"speaker {name!r} has no voice to evaluate: the training data has only {known}; remove the row")


def assign_rows(shape: dict[str, Any], names: list[str]) -> dict[str, int]:
    """Row of the codec embedding for each name: its old one if the base already knows it, else the next free one from the reserved rows.

    Raises `UserError` when they are full.
    """
    talker = shape["talker_config"]
    presets: dict[str, int] = {name.lower(): row for name, row in (talker.get("spk_id") or {}).items()}
    first, end = talker["vocab_size"] - RESERVED_ROWS, talker["vocab_size"]
    free = iter(sorted(set(range(first, end)) - set(presets.values())))
    assigned = {name: presets[name] if name in presets else next(free, None) for name in names}
    homeless = [name for name, row in assigned.items() if row is None]
    if homeless:
        raise UserError(
            f"no room for {len(homeless)} of {len(names)} speakers (the first is {homeless[0]!r}): rows {first} … {end - 1} of the codec "
            f"embedding are for speakers, and the base has {len(presets)} already; train on fewer"
        )
    return {name: row for name, row in assigned.items() if row is not None}


def describe(config: Config[Options], surveyed: list[Speaker], rows_of: dict[str, int]) -> dict[str, Any]:
    """What export and its model card need to know, as JSON. Training that is resumed must find the same."""
    train = on_disk(config.data.train)
    assert train is not None
    options = config.options
    speaking = options.language == "row"
    return {
        "speakers": [
            {
                "name": speaker.name,
                "row": rows_of[speaker.name],
                "language": speaker.language if speaking else None,
                "clips": speaker.clips,
                "seconds": round(speaker.frames / FRAME_RATE, 2),
            }
            for speaker in surveyed
        ],
        # The ends of paths tell a person what it was; whole paths would forbid to resume the run on another machine, and be made public.
        "data": {"name": "/".join(train.parts[-2:]), "sha256": files.digest(train), "clips": sum(speaker.clips for speaker in surveyed)},
        "base": {"name": base_name(str(config.model.source)), "revision": config.model.revision},
    }


def base_name(source: str) -> str:
    """A hub name as it is; of a folder its last part."""
    on_hub = source.count("/") == 1 and not source.startswith((".", "/")) and not Path(source).is_dir()
    return source if on_hub else Path(source).name
