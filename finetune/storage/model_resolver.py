"""Finds the folder of a model that is given as a path, as the name of a demo model, or as a name on the Hugging Face Hub.

Every flag and config key that takes a model uses it, so a name works everywhere in the same way, and errors differ only in the flag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.base_quantization import find_form
from overtone.finetune.storage.foreign_model_formats import explain_foreign_model
from overtone.finetune.storage.hub_download import commit_of, download, download_dataset
from overtone.finetune.storage.model_security import CONFIG, INDEX, checked_index, read_object

WEIGHTS, SINGLE, IN_SUBFOLDERS = "*.safetensors", "model.safetensors", "*/*.safetensors"
NAMED_BY_CONFIG = "transformers_weights"
"""Key of config.json for weights under another name than transformers' own, as in sesame/csm-1b."""
MODEL_FILES = (WEIGHTS, "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "README.md", "LICENSE")
"""Files that are downloaded from a hub repository: data only, never code or pickled weights."""
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*")
OWN_FOLDERS = ("exports", "runs", "data")
"""Folders that our own commands write: `exports/me` is a path, also before it exists, and never the repository of a user `exports`."""


def resolve_model(option: str, model: str, patterns: Sequence[str] = MODEL_FILES, revision: str | None = None) -> Path:
    """Return the given folder; or, for the name of a demo model, its unpacked folder; or, for a name on the hub, the folder into which its
    files that match `patterns` are downloaded, at the commit to which `revision` (default: main) resolves; of the weights, those that
    `download_model` chooses.

    Raises `UserError`, in the name of the flag or config key `option`, if `model` is none of them or the download fails.
    """
    if Path(model).is_dir():
        return Path(model)
    if (foreign := explain_foreign_model(Path(model))) is not None:
        raise UserError(f"{option} {model}: {foreign}")
    if demo_models.is_demo_model(model):
        return demo_models.folder_of(model)
    if not is_hub_name(model):
        demos = ", ".join(demo_models.names())
        raise UserError(
            f"{option} {model}: no such folder, and not a hub name (owner/model) nor a demo model ({demos}){_explain_path(model)}"
        )
    try:
        folder = download_model(model, revision, [*patterns])
    except UserError as error:
        raise UserError(f"{option} {model}: {error}") from None
    except Exception as error:  # the hub client raises a dozen unrelated types for "not there", "no access" and "no network"
        raise UserError(
            f"{option} {model}: no such folder, and the download from the hub failed: {_explain_failure(error, model, revision)}"
        ) from error
    if not folder.is_dir():
        raise UserError(f"{option} {model}: the repository on the hub has none of the files {', '.join(patterns)}, so it is not a model")
    return folder


def download_model(model: str, revision: str | None, patterns: list[str]) -> Path:
    """Download a model as `download` does. If `patterns` has `WEIGHTS`, only the set of weights that transformers loads is downloaded from
    the files beside config.json.

    A repository may contain a second set in the format of its makers: 6 GB in sesame/csm-1b, `consolidated.safetensors` of Mistral. Raises
    `UserError` for an invalid index of weights and weights in a form that is refused, and the exceptions of huggingface_hub.
    """
    if WEIGHTS not in patterns:
        return download(model, revision, patterns)
    others = [pattern for pattern in patterns if pattern != WEIGHTS]
    folder = download(model, revision, others)
    if (folder / CONFIG).is_file():
        find_form(read_object(folder / CONFIG), folder)  # before hours of downloading weights that are then refused
    commit = commit_of(folder) or revision
    weights = find_weight_files(folder) or [SINGLE]
    folder = download(model, commit, [*others, *weights, IN_SUBFOLDERS])
    return folder if all((folder / name).is_file() for name in weights) else download(model, commit, patterns)


def find_weight_files(folder: Path) -> list[str]:
    """Return the names of the weights that transformers loads from a folder, by its config.json and weights index; none if these name
    none."""
    named = read_object(folder / CONFIG).get(NAMED_BY_CONFIG) if (folder / CONFIG).is_file() else None
    index = named if isinstance(named, str) and Path(named).name == named and (folder / named).is_file() else INDEX
    return sorted({*checked_index(folder / index).values()}) if index.endswith(".index.json") and (folder / index).is_file() else []


def resolve_dataset(option: str, dataset: str, patterns: Sequence[str]) -> Path:
    """Return the given file or folder; or, for the name of a dataset on the hub, the folder into which its files that match `patterns` are
    downloaded. Raises `UserError`, in the name of the flag `option`."""
    if Path(dataset).exists() or not is_hub_name(dataset):
        return Path(dataset)
    try:
        folder = download_dataset(dataset, [*patterns])
    except Exception as error:  # as in `resolve_model`
        reason = _explain_failure(error, dataset, None, "datasets/")
        raise UserError(f"{option} {dataset}: no such file or folder, and the download from the hub failed: {reason}") from error
    if not folder.is_dir():
        raise UserError(f"{option} {dataset}: the dataset on the hub has none of the files {', '.join(patterns)}")
    return folder


def find_dataset_card(option: str, dataset: str) -> Path | None:
    """Return the downloaded README.md of a dataset on the hub; None if it has none, or `dataset` is a path. Raises `UserError` like
    `resolve_dataset`."""
    if Path(dataset).exists() or not is_hub_name(dataset):
        return None
    try:
        card = download_dataset(dataset, ["README.md"]) / "README.md"
    except Exception as error:  # as in `resolve_model`
        reason = _explain_failure(error, dataset, None, "datasets/")
        raise UserError(f"{option} {dataset}: no such file or folder, and the download from the hub failed: {reason}") from error
    return card if card.is_file() else None


def is_hub_name(model: str) -> bool:
    """Return whether `model` has the form owner/model and is not a path: it does not exist, and neither does a folder `owner`."""
    owner = model.partition("/")[0]
    return HUB_NAME.fullmatch(model) is not None and owner not in OWN_FOLDERS and not Path(owner).is_dir()


def _explain_path(model: str) -> str:
    """Return why a name of the form owner/model is taken as a path, and what to do; empty for other names."""
    owner = model.partition("/")[0]
    if HUB_NAME.fullmatch(model) is None:
        return ""
    if owner == "exports":
        return f"; create it with: {overtone_command('export', 'RUN', '--to', model)}"
    return f"; it counts as a path, since {owner} is a folder " + ("here" if Path(owner).is_dir() else "that the commands write")


def _explain_failure(error: Exception, model: str, revision: str | None, page: str = "") -> str:
    """Return why a download failed, and what to do."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"its owner must admit you: accept the terms at {constants.ENDPOINT}/{page}{model}, and run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has no such repository, or it is private; check the name, or log in with `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision}; check the commit, tag or branch"
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason}; check the network, or give the folder of a copy from a machine with a network"
