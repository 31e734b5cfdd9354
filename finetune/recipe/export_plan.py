"""Plan that turns trained tensors into the folder that a stock package loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from overtone.finetune.recipe.checkpoint_state import CheckpointState

if TYPE_CHECKING:
    from torch import Tensor

    from overtone.finetune.storage.tensor_layouts import TensorLayout


def _keep_every_tensor(_: str) -> bool:
    return True


def _keep_name(name: str) -> str:
    return name


@dataclass(frozen=True)
class Conversion:
    """Conversion of the folder that an `ExportPlan` describes to the files of another program's format."""

    choose_type: Callable[[str | None], str]
    """Value of --quantize, None without the flag → the type of the numbers. Raises `UserError` for a type that cannot be written."""
    convert: Callable[[Path, Path, str], dict[str, str]]
    """(folder with the plan's files, folder to write into, type of the numbers) → name and SHA-256 of the files with weights. Raises
    `UserError` for a model that the format cannot express, and for a file that does not read back as what was trained."""
    describe_use: Callable[[str], list[str]]
    """Type of the numbers → lines for the terminal: what to do with the files."""
    of_adapter: bool = False
    """The folder has the LoRA adapter alone, in peft's format, as with --adapter-only."""


@dataclass(frozen=True)
class ExportPlan:
    """Plan by which trained tensors become the folder that a stock package loads."""

    translate_name: Callable[[str], str] = _keep_name
    """Name of a tensor of the base, and name of a parameter that it lacks (`Loaded.added`) → its name in the exported weights. `keep` and
    `edit` get the new names."""
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)
    """`Loaded.layouts`: by them the exported weights have the tensors of the base again."""
    keep: Callable[[str], bool] = _keep_every_tensor
    """Returns whether the exported weights hold a tensor."""
    edit: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """Last change to a tensor, in fp32, by name; the shape stays."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Content of files to write, by path relative to the folder (config.json, README.md)."""
    copy: tuple[str, ...] = ()
    """Paths relative to the base folder, files or folders, copied as they are."""
    readme: Callable[[CheckpointState, str], str] | None = None
    """(the checkpoint's state.json, its config.yaml) → README.md: what the model is and what it was made from. Absent, with no README.md
    in `files` or `copy`: a card is written with recipe, base, data, training, validation loss and config."""
    adapter_config: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keys of peft's adapter_config.json that say which class loads the base of an adapter: `task_type`, or `auto_mapping` with
    `base_model_class` and `parent_library` for a class for which peft has no task. Absent: `AutoPeftModel` cannot load the adapter."""
    adapter_files: tuple[str, ...] = ()
    """Files of `files` and `copy` that an export of the adapter alone contains, too: tokenizer and chat template."""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keys in the header of that card, in the hub's form: library_name, pipeline_tag, tags."""
    conversion: Conversion | None = None
    """Absent: the folder itself is the export."""
