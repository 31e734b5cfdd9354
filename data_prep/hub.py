"""Models by folder, by the name of a demo model, or by name on the model hub, of which only the files that are needed are fetched."""

from __future__ import annotations

from pathlib import Path

from finetune import shipped
from finetune.errors import UserError
from finetune.hub_download import download


def folder_of(option: str, model: str, patterns: list[str], commit: str | None = None) -> Path:
    """A local folder as it is; a demo model as its expanded folder; a name on the model hub as the folder into which its files that match
    `patterns` are fetched, of one `commit` (default: the newest).

    Raises `UserError`, in the name of `option`, if there is neither.
    """
    if Path(model).is_dir():
        return Path(model)
    return shipped.folder_of(model) if shipped.is_shipped(model) else _fetch(option, model, patterns, commit)


def _fetch(option: str, model: str, patterns: list[str], commit: str | None) -> Path:
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise UserError(f"{option} {model}: there is no such folder, and it is not a name on the model hub (owner/name){shipped.listing()}")
    try:
        return download(model, commit, patterns)
    except Exception as error:  # no network, no such model, no right to it: each is another class
        raise UserError(
            f"{option} {model}: there is no such folder, and the model hub did not give it ({type(error).__name__}: {error}); "
            "fetch it where there is a network, and give the folder"
        ) from error
