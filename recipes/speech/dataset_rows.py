"""Rows of a voice dataset with audio codes, as speech recipes train on them: checks of a row, and the speakers of a dataset."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_prep import manifest
from data_prep.audio_codecs.interface import Codec
from data_prep.dataset.codec_metadata import read_codes_summary
from finetune.config import Config, on_disk
from finetune.errors import UserError
from finetune.storage import files
from recipes.speech.evaluation.evaluation_items import visit_rows

CHAT_KEYS = frozenset({"messages", "prompt", "completion", "conversations"})
"""Keys of rows for language models."""


def check_is_speech(row: dict[str, Any], recipe: str) -> None:
    """Raise `UserError` for a row of a chat, which belongs to another recipe than `recipe`."""
    if found := sorted(CHAT_KEYS & row.keys()):
        raise UserError(
            f"the row is a chat (it has {', '.join(found)}), and {recipe} trains on speech; use --recipe llm_sft for chats, or give the "
            "train.jsonl that `python -m data_prep voice` and `codes` made"
        )


def check_text(text: Any) -> str:
    """The spoken words of a row. Raises `UserError` if there are none."""
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"text = {text!r}: expected the spoken words; add them or remove the row")
    return text


def check_codes(codes: Any, codebooks: int, codebook_size: int) -> Tensor:
    """`audio_codes` as int64 [T, codebooks], T ≥ 1, from 0 to `codebook_size` - 1. Raises `UserError` with the place of a bad code."""
    if codes is None:
        raise UserError("the row has no audio_codes; run `python -m data_prep codes FOLDER --model MODEL` on its folder first")
    if not isinstance(codes, list) or not codes:
        raise UserError(f"audio_codes = {str(codes)[:40]}: expected a list of at least one frame; create the codes again")
    wrong = next((t for t, frame in enumerate(codes) if not isinstance(frame, list) or len(frame) != codebooks), None)
    if wrong is not None:
        frame = str(codes[wrong])[:80]
        raise UserError(f"audio_codes, frame {wrong}: {frame} is not a list of {codebooks} codes; create the codes again with this model")
    if not all(type(code) is int and abs(code) < 2**63 for frame in codes for code in frame):
        raise UserError("audio_codes: codes must be integers; create the codes again with this model")
    array = np.asarray(codes)
    outside = np.argwhere((array < 0) | (array >= codebook_size))
    if len(outside):
        t, book = outside[0]
        raise UserError(
            f"audio_codes, frame {t}, codebook {book}: {array[t, book]} is outside of 0 … {codebook_size - 1}; the codes come from "
            "another model: create them again with the model that you train"
        )
    return torch.from_numpy(array.astype(np.int64))


def find_speaker_name(row: dict[str, Any], default: str | None) -> str:
    """The row's speaker, or `default`, in lower case, as generation looks it up. Raises `UserError` if there is none."""
    name = row.get("speaker") or default
    if not isinstance(name, str) or not name.strip():
        raise UserError('the row has no speaker; add "speaker" to it, or set --options.speaker NAME for all rows')
    return manifest.parse_speaker(name)


@dataclass
class SpeakerClips:
    """The clips of one speaker."""

    clips: int = 0
    frames: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    """English names in lower case."""


def collect_clips(
    config: Config, recipe: str, default: str | None, count_frames: Callable[[dict[str, Any]], int]
) -> dict[str, SpeakerClips]:
    """The clips of each speaker of `data.train`, by name in order. `count_frames` checks a row's codes and returns their number of frames.
    Otherwise as `visit_speakers`."""
    found: dict[str, SpeakerClips] = {}

    def add_row(_: Path, name: str, row: dict[str, Any]) -> None:
        frames, language = count_frames(row), str(row.get("language") or manifest.AUTO).strip().lower()
        speaker = found.setdefault(name, SpeakerClips())
        if row.get("time_shift") is None:  # a copy adds no speech
            speaker.clips += 1
            speaker.frames += frames
        speaker.languages[manifest.LANGUAGES.get(language, language)] += 1

    visit_speakers(config, recipe, default, add_row)
    return dict(sorted(found.items()))


def visit_speakers(config: Config, recipe: str, default: str | None, add_row: Callable[[Path, str, dict[str, Any]], None]) -> None:
    """Call `add_row` with folder, speaker and content of each row of `data.train`, for the recipe of this name. `default` is the speaker of
    rows without one.

    Raises `UserError` with file and line for bad rows, and for speakers who are only in `data.val`.
    """
    trained = list_training_files(config)
    if not trained:
        raise UserError(
            "data.train is not set: give the JSONL to train on, as in --data.train data/me/train.jsonl. "
            "`python -m data_prep voice RECORDINGS --out data/me --speaker me` creates one from recordings; `make demo` shows all steps"
        )
    names: dict[str, None] = {}

    def visit_row(root: Path, row: dict[str, Any]) -> None:
        check_is_speech(row, recipe)
        name = find_speaker_name(row, default)
        names[name] = None
        add_row(root, name, row)

    for train in trained:
        visit_rows(train, partial(visit_row, train.parent))
    for val in list_validation_files(config):
        visit_rows(val, lambda row: require_trained(find_speaker_name(row, default), names))


def list_training_files(config: Config) -> list[Path]:
    """`data.train`, or the files of `data.mix`."""
    return [path for path in map(on_disk, config.data.training_files()) if path is not None]


def list_validation_files(config: Config) -> list[Path]:
    """The file or files of `data.val`."""
    return [path for path in map(on_disk, config.data.validation_files()) if path is not None]


def describe_training_files(trained: Sequence[Path]) -> dict[str, str]:
    """Name and SHA-256 of the training data, for the recipe's state; the same for each order of the files, since `data.mix` has none. Only
    the ends of paths: a full path would be published in the model card, and would prevent resuming on another machine."""
    digests = [files.digest(train) for train in trained]
    return {
        "name": ", ".join(sorted("/".join(train.parts[-2:]) for train in trained)),
        "sha256": digests[0] if len(digests) == 1 else hashlib.sha256("".join(sorted(digests)).encode()).hexdigest(),
    }


def require_trained(name: str, trained: dict[str, Any]) -> None:
    """Raise `UserError` for a speaker of the validation data who is not in the training data."""
    if name not in trained:
        known = ", ".join(sorted(trained))
        raise UserError(f"speaker {name!r} is not trained: the training data has only {known}; remove the row")


def check_dataset_codec(config: Config, codec: Codec) -> None:
    """Raise `UserError` if `data_prep codes` recorded another codec beside a data file: with this one, its codes would be other sounds."""
    for data in (*list_training_files(config), *list_validation_files(config)):
        stored = read_codes_summary(data.parent)
        if stored is not None and stored.codec_digest not in (None, codec.digest()):
            other = stored.entries.get("model", "another model")
            raise UserError(
                f"{data}: its codes were made with {other}, whose codec differs from that of {codec.model}; "
                f"run: python -m data_prep codes {shlex.quote(str(data))} --model {shlex.quote(str(codec.model))}"
            )


def shorten_source(source: str) -> str:
    """A hub name unchanged; for a folder, its last part."""
    on_hub = source.count("/") == 1 and not source.startswith((".", "/")) and not Path(source).is_dir()
    return source if on_hub else Path(source).name
