"""Names of served models: the last part of a folder or hub name. Clients may also use the name that was typed on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage.hub_download import display_name

from .api_errors import Refusal
from .request_queue import RequestQueue


def name_models(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return short name → folder. `folders`: name on the command line → folder. Raises `UserError` for one that does not exist, for two
    with the same name, and for a name that is not valid UTF-8, which no answer to a client could contain."""
    found: dict[str, Path] = {}
    for folder in folders.values():
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; `{overtone_command('export', 'RUN', '--to', folder)}` makes one")
        if (name := display_name(folder)) in found:
            raise UserError(f"{folder} and {found[name]} would both have the name {name}; rename one of the folders")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"{str(folder)!a}: the folder's name is not valid UTF-8; rename the folder") from None
        found[name] = folder
    return found


def list_typed_names(folders: Mapping[str, Path]) -> dict[str, str]:
    """Return the name on the command line → the short name, for each model."""
    return {typed: display_name(folder) for typed, folder in folders.items()}


def require_model(queue: RequestQueue[Any, Any], given: str) -> str:
    """Return the short name of the model that a client requests. Raises `Refusal`, which lists the models, for an unknown one."""
    name = queue.typed.get(given, given)
    if name not in queue.names:
        raise Refusal(404, f"the model {given!r} does not exist; models: {', '.join(queue.names)}", "model_not_found", "model")
    return name
