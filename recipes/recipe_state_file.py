"""The file of a run's recipe state: `prepare` writes it in one process, `load` reads it in every process."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import RecipeState
from overtone.finetune.recipe.recipe_state import StateT
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.json_schema import parse_model
from overtone.finetune.storage.strict_json import loads_object


def store_state(run_dir: Path, state: RecipeState) -> None:
    """Write a recipe state into the run's cache."""
    files.write_bytes(_cache_path(run_dir), files.json_bytes(state.as_json()))


def load_state(run_dir: Path, model: type[StateT]) -> StateT:
    """The recipe state that `store_state` wrote for this run. Raises `UserError` if it is missing or not a `model`."""
    path = _cache_path(run_dir)
    try:
        return parse_model(model, loads_object(input_files.read_bytes(path)))
    except (OSError, UserError) as error:
        raise UserError(f"{path} is missing or damaged; training writes it when it starts, so start the training again") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}; training writes the file when it starts, so start the training again") from error


def _cache_path(run_dir: Path) -> Path:
    return run_dir / "cache" / "recipe_state.json"
