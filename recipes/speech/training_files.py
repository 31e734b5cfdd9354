"""The training and validation files of a speech run: paths, names and digests, and the check that their codes fit the codec of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from overtone.data_prep.audio_codecs.interface import Codec
from overtone.data_prep.dataset.codec_metadata import read_codes_summary
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.config import Data, on_disk
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files


def list_training_files(data: Data) -> list[Path]:
    """`data.train`, or the files of `data.mix`."""
    return [path for path in map(on_disk, data.training_files()) if path is not None]


def list_validation_files(data: Data) -> list[Path]:
    """The file or files of `data.val`."""
    return [path for path in map(on_disk, data.validation_files()) if path is not None]


def describe_training_files(trained: Sequence[Path]) -> tuple[str, str]:
    """Return name and SHA-256 of the training data, for the recipe's state. They do not depend on the order of the files, since `data.mix`
    has none. The name contains only the ends of paths: a full path would be published in the model card, and would prevent resuming on
    another machine."""
    digests = [files.digest(train) for train in trained]
    name = ", ".join(sorted("/".join(train.parts[-2:]) for train in trained))
    return name, digests[0] if len(digests) == 1 else hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def check_dataset_codec(data: Data, codec: Codec) -> None:
    """Raises `UserError` if `overtone codes` recorded another codec beside a data file: decoded by this one, its codes would give other
    sounds."""
    for file in (*list_training_files(data), *list_validation_files(data)):
        stored = read_codes_summary(file.parent)
        if stored.codec_digest not in (None, codec.digest()):
            other = stored.entries.get("model", "another model")
            raise UserError(
                f"{file}: its codes were made with {other}, whose codec differs from that of {codec.model}; "
                f"run: {overtone_command('codes', file, '--model', codec.model)}"
            )
