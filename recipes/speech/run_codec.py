"""The codec of a run whose base has none of its own: it must be the one that the data was encoded with, and an export contains it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.audio_codecs.interface import Codec, CodeFormat, read_code_format
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER
from overtone.finetune.errors import UserError
from overtone.finetune.storage.json_schema import JsonPart
from overtone.finetune.storage.model_security import CONFIG


class CodecRecord(JsonPart):
    """The codec of the dataset, as a part of a recipe's state."""

    source: str | None
    """`options.codec`."""
    digest: str


@dataclass(frozen=True)
class ExpectedCodec:
    """The codec of a kind of model."""

    model: str
    """Name of the kind, for messages."""
    usual: str
    """Hub name of the codec that its authors use."""
    format: CodeFormat


def choose_codec(given: str | None, base: Path, usual: str) -> str:
    """Hub name or folder of a run's codec: the given one, or that in the base if it is an export, or the usual one."""
    own = (base / CODEC_FOLDER / CONFIG).is_file()
    return given or (str(base) if own else usual)


def open_run_codec(given: str | None, base: Path, expected: ExpectedCodec, option: str = "--options.codec") -> Codec:
    """The codec as `choose_codec` says. Raises `UserError`, which names `option`, if its codes do not have the expected format."""
    name = choose_codec(given, base, expected.usual)
    codec = open_codec(name, option)
    if (found := read_code_format(codec)) != expected.format:
        raise UserError(
            f"{option} {name}: a codec with {describe_format(found)}, and {expected.model} reads {describe_format(expected.format)}; "
            f"give {expected.usual}"
        )
    return codec


def open_recorded_codec(record: CodecRecord, base: Path, expected: ExpectedCodec) -> Codec:
    """The codec that a run has recorded, for its export. Raises `UserError` if it is not found, or has changed since the training."""
    codec = open_run_codec(record.source, base, expected)
    if (digest := codec.digest()) != record.digest:
        raise UserError(
            f"options.codec: {codec.folder} is not the codec of this run (digest {digest[:12]}…, expected {record.digest[:12]}…), so "
            "the export would speak other sounds; restore that codec"
        )
    return codec


def describe_format(codes: CodeFormat) -> str:
    """A format of codes, for messages."""
    frames = f"frames of {codes.samples_per_frame} samples at {codes.sample_rate} Hz"
    return f"{codes.codebooks} codes from 0 to {codes.codebook_size - 1} in {frames}"
