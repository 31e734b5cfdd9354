"""The demo Whisper of the data package (`whisper-demo-en`): works offline, and knows only the demo's grammar.

It transcribes any English speech with words of that grammar, so it is used only if requested by name, its rows are marked, and its
low-confidence texts are rejected earlier than those of a regular Whisper. `workshop/demo_models` trains it.
"""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from overtone.data_prep.transcription.packed_transcription import WhisperSettings
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models, files, input_files

if TYPE_CHECKING:
    from torch import Tensor

NAME = "whisper-demo-en"
WEIGHTS, ABOUT = "weights.safetensors", "about.json"
"""Files in its archive, next to the model card. The weights are fp16; the rows of unused tokens are identical and compress well."""
ORIGIN = "a small recognizer that we trained on the voices of the demo"
"""Caveat about its word error rates: a recognizer with other training has higher ones (workshop/lab_book/demos.md)."""
RETRY_BELOW = -0.05
"""Mean log-probability below which the evaluation of speech transcribes a clip again: about one in four clips of the demo's trained voice,
and one in forty of its recordings. Chosen by the WER of 120 sentences that the demo does not report (workshop/lab_book/demos.md)."""


class DemoWhisperDescription(BaseModel):
    """Description of the model, stored with everything that it transcribes."""

    model_config = ConfigDict(frozen=True)

    dims: dict[str, int]
    """Model dimensions of openai-whisper."""
    scope: str
    """Text for users on what the model can do and what it is not for."""
    least_sure: float
    """Mean log-probability below which a text is probably hallucinated."""
    longest_window: float
    """Maximum input in seconds: on longer input, such a small decoder loses its position."""
    figures: dict[str, Any]
    """Results of `workshop/demo_models/whisper/measure_whisper.py`."""


def is_demo_name(name: str) -> bool:
    """Return whether the `--whisper` name selects this model."""
    return name == NAME


def load_description(option: str = WHISPER_OPTION) -> DemoWhisperDescription:
    """Load the description and print what the model is to stderr. Raises `UserError` if the model file is missing."""
    return DemoWhisperDescription.model_validate_json(input_files.read_bytes(_unpack_model(digest_archive(option)) / ABOUT))


def digest_archive(option: str = WHISPER_OPTION) -> str:
    """Return the SHA-256 of the archive. Raises `UserError` if it is not installed."""
    try:
        return files.digest(demo_models.archive_of(NAME))
    except UserError as error:
        raise UserError(f"{option} {NAME}: {error}. Or use another Whisper model, such as small, or a .pt file") from error


def describe_settings(option: str = WHISPER_OPTION) -> WhisperSettings:
    """Return the settings of a run with this model, besides its weights."""
    model = load_description(option)
    return {"name": NAME, "scope": model.scope, "least_sure": model.least_sure, "longest_window": model.longest_window}


def fetch_checkpoint(option: str = WHISPER_OPTION) -> Path:
    """Return the path of a checkpoint for `whisper.load_model`, in the user's cache; created on first use."""
    path = demo_models.cache() / f"{NAME}-{digest_archive(option)[:16]}.pt"
    if not path.is_file():
        files.write_bytes(path, convert_to_checkpoint(_unpack_model(digest_archive(option)) / WEIGHTS, load_description(option).dims))
    return path


def convert_to_checkpoint(weights: Path, dims: dict[str, int]) -> bytes:
    """Return the bytes of an openai-whisper checkpoint (`torch.save` format) from a safetensors file."""
    import torch
    from safetensors.torch import load_file

    buffer = io.BytesIO()
    torch.save({"dims": dims, "model_state_dict": load_file(weights)}, buffer)
    return buffer.getvalue()


def write_model(folder: Path, tensors: dict[str, Tensor], model: DemoWhisperDescription) -> None:
    """Write the files of the model, before packing: fp16 tensors by their openai-whisper names, and the description."""
    from safetensors.torch import save

    files.write_bytes(folder / WEIGHTS, save(tensors))
    files.write_text(folder / ABOUT, json.dumps(model.model_dump(), indent=1) + "\n")


@functools.cache
def _unpack_model(_digest: str) -> Path:
    """Unpack once per process, because it prints a warning."""
    return demo_models.folder_of(NAME)
