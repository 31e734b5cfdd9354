"""One replica of `overtone ray-serve`: an actor of Ray Serve that answers with the app of `overtone serve`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from overtone.finetune.recipe import find_recipe, load_inference


class ReplicaArguments(NamedTuple):
    """All that a replica needs, for any machine of the cluster."""

    recipe: str
    folders: dict[str, str]
    """Absolute path of each exported folder, by what was typed for it."""
    argv: list[str]
    """Arguments of `serve`."""
    secrets: Mapping[str, str]
    """`ReplicaPlan.secrets`."""
    place: str
    """The working directory, from which paths in `argv` start."""


class ServingReplica:
    """Owns the loaded models until it is deleted. Ray Serve calls `__serve_build_asgi_app__` after the constructor, and runs that app."""

    def __init__(self, arguments: ReplicaArguments) -> None:
        os.chdir(arguments.place)
        plan = load_inference(find_recipe(arguments.recipe)).plan_replica
        assert plan is not None  # the command has checked it
        folders = {name: Path(folder) for name, folder in arguments.folders.items()}
        self._opened = ExitStack()
        self._app = self._opened.enter_context(plan(folders, arguments.argv, arguments.secrets).open_app())

    def __serve_build_asgi_app__(self) -> object:
        return self._app

    def __del__(self) -> None:
        self._opened.close()
