"""codes/summary.json, in which `overtone codes` records the codec of a dataset's codes: rows hold the codes alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pydantic import JsonValue

from overtone.data_prep.audio_codecs.interface import Codec, CodeFormat, read_code_format
from overtone.data_prep.audio_codecs.selection import DEFAULT_FORMAT, DEFAULT_RECIPE, RECIPES
from overtone.data_prep.dataset.clip_encoding import STORE
from overtone.data_prep.manifest import SUMMARY
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import read_object

CODEC_KEYS = ("model", "codec_digest", "code_format", "recipe", "demo_model")
"""Entries about the codec, which also hold for a part of the dataset."""


@dataclass(frozen=True)
class CodesSummary:
    """The codec of a dataset's codes."""

    code_format: CodeFormat
    recipe: str
    """The recipe that trains on the codes."""
    codec_digest: str | None
    """None if `overtone codes` never ran: the codes are assumed to be those of the default codec."""
    entries: dict[str, JsonValue]
    """Entries of the file about the codec."""


def describe_codec(codec: Codec, digest: str) -> dict[str, object]:
    """Return the entries of a codec."""
    return {"codec_digest": digest, "code_format": asdict(read_code_format(codec)), "recipe": codec.recipe}


def has_same_shape(one: CodeFormat, other: CodeFormat) -> bool:
    """Return whether two formats differ in nothing but the number of different codes, which is smaller in demo models."""
    return replace(one, codebook_size=other.codebook_size) == other


def read_codes_summary(folder: Path) -> CodesSummary:
    """Return the stored codec of a dataset's folder. Raises `UserError` for a file that this version does not write."""
    path = folder / STORE / SUMMARY
    if not path.is_file():
        return CodesSummary(DEFAULT_FORMAT, DEFAULT_RECIPE, None, {})
    stored = read_object(path)
    recipe, digest = stored.get("recipe"), stored.get("codec_digest")
    if not isinstance(recipe, str) or recipe not in RECIPES:  # it becomes part of a command that users copy
        raise _make_error(path, "recipe", recipe)
    if not isinstance(digest, str):
        raise _make_error(path, "codec_digest", digest)
    entries = {key: stored[key] for key in CODEC_KEYS if key in stored}
    return CodesSummary(_parse_format(path, stored.get("code_format")), recipe, digest, entries)


def _parse_format(path: Path, stored: JsonValue) -> CodeFormat:
    keys = {field.name for field in fields(CodeFormat)}
    numbers = {key: value for key, value in stored.items() if type(value) is int and value > 0} if isinstance(stored, dict) else {}
    if not isinstance(stored, dict) or set(stored) != keys or len(numbers) < len(stored):
        raise _make_error(path, "code_format", stored)
    return CodeFormat(**numbers)


def _make_error(path: Path, key: str, stored: JsonValue) -> UserError:
    command = overtone_command("codes", path.parent.parent, "--model", "MODEL")
    return UserError(f"{path}: {key} {stored!r} is not what this version writes; run: {command}")
