"""Finds the folder of a model that is given as a path, as the name of a demo model, or as a name on the model hub."""

from __future__ import annotations

from pathlib import Path

from finetune.errors import UserError
from finetune.storage import demo_models
from finetune.storage.hub_download import download


def resolve_model(option: str, model: str, patterns: list[str], commit: str | None = None) -> Path:
    """The given folder; or, for the name of a demo model, its unpacked folder; or, for a name on the model hub, the folder into which its
    files that match `patterns` are downloaded, of one `commit` (default: the newest).

    Raises `UserError`, in the name of the command-line `option`, if `model` is none of them or the download fails.
    """
    if Path(model).is_dir():
        return Path(model)
    return demo_models.folder_of(model) if demo_models.is_shipped(model) else _download_model(option, model, patterns, commit)


def _download_model(option: str, model: str, patterns: list[str], commit: str | None) -> Path:
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise UserError(
            f"{option} {model}: there is no such folder, and it is not a name on the model hub (owner/name){demo_models.listing()}"
        )
    try:
        return download(model, commit, patterns)
    except Exception as error:  # no network, no such model, no access: each raises another class
        raise UserError(
            f"{option} {model}: there is no such folder, and the download from the model hub failed ({type(error).__name__}: {error}); "
            "download it on a machine with a network, and give its folder"
        ) from error
