"""The Whisper that comes with the package: it needs no network, and knows no more than the demo's grammar.

It answers any English with words of that grammar, so it is used only where it is asked for by its name, what it writes says so, and
texts that it is not sure of are rejected earlier than those of a real Whisper. `recipes/voice_clone/studio` trains it.
"""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from finetune import files, shipped
from finetune.errors import UserError

NAME = "whisper-demo-en"
WEIGHTS, ABOUT = "weights.safetensors", "about.json"
"""In its archive, beside the card: fp16, of which the rows of unused tokens are all alike and compress to nothing."""


class About(BaseModel):
    """What the model is, told with everything that it writes."""

    model_config = ConfigDict(frozen=True)

    dims: dict[str, int]
    """Of openai-whisper."""
    scope: str
    """For people: what it knows and what it is not for."""
    least_sure: float
    """Mean log-probability: below it, a text is probably invented."""
    longest_window: float
    """Seconds of speech that it is given at a time: in longer ones so small a decoder loses its place."""
    figures: dict[str, Any]
    """As `measure_whisper` of the studio measured them."""


def is_meant(name: str) -> bool:
    """Whether `--whisper` asks for this model: by its name only."""
    return name == NAME


def about() -> About:
    """Says on stderr what the model is. Raises `UserError` if this copy of the package came without it."""
    return About.model_validate_json((_folder(digest()) / ABOUT).read_bytes())


def digest() -> str:
    """SHA-256 of the archive. Raises `UserError` if this copy of the package came without it."""
    path = shipped.HERE / f"{NAME}.zip"
    if not path.is_file():
        raise UserError(f"--whisper {NAME}: {path} is missing; reinstall the package, or take a Whisper: small, or a .pt file")
    return files.digest(path)


def particulars() -> dict[str, Any]:
    """What the settings of a run tell beside its weights."""
    told = about()
    return {"name": NAME, "scope": told.scope, "least_sure": told.least_sure, "longest_window": told.longest_window}


def unpacked() -> Path:
    """A checkpoint as `whisper.load_model` reads it, in the user's cache; made when it is first asked for."""
    path = shipped.cache() / f"{NAME}-{digest()[:16]}.pt"
    if not path.is_file():
        files.write_bytes(path, checkpoint(_folder(digest()) / WEIGHTS, about().dims))
    return path


def checkpoint(weights: Path, dims: dict[str, int]) -> bytes:
    """The bytes of an openai-whisper checkpoint, which is in the format of `torch.save`."""
    import torch
    from safetensors.torch import load_file

    buffer = io.BytesIO()
    torch.save({"dims": dims, "model_state_dict": load_file(weights)}, buffer)
    return buffer.getvalue()


def write(folder: Path, tensors: dict[str, Any], told: About) -> None:
    """The files of the model, before `shipped.pack`: fp16 tensors by their names in openai-whisper, and what they are."""
    from safetensors.torch import save

    files.write_bytes(folder / WEIGHTS, save(tensors))
    files.write_text(folder / ABOUT, json.dumps(told.model_dump(), indent=1) + "\n")


@functools.cache
def _folder(_digest: str) -> Path:
    """Once in a process: it warns."""
    return shipped.folder_of(NAME)
