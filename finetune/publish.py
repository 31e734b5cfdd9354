"""An exported folder on the Hugging Face hub, through the hub's own client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.errors import UserError

WRITABLE = "a token that may write (huggingface.co/settings/tokens)"


def check(name: str) -> None:
    """What can be known before the work: whether NAME could be a repository, and whether there is a token. Raises `UserError`."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not exported for type checkers

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"--push-to-hub {name}: no name of a repository ({error}); give OWNER/MODEL, as in --push-to-hub me/my-model"
        ) from None
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"--push-to-hub {name}: HF_HUB_OFFLINE is set, which forbids it; unset it, or leave the flag out")
    if get_token() is None:
        raise UserError(f"--push-to-hub {name}: you are not logged in; run `hf auth login` with {WRITABLE}, or set HF_TOKEN")


def push(folder: Path, name: str, private: bool) -> str:
    """Upload all of a folder, to a repository that is made if it is missing; returns its address.

    Raises `UserError` that says how to try again; the folder stays as it is.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Upload an exported model")
    except Exception as error:  # the hub client raises a dozen unrelated types for "no" and "no network"
        raise UserError(
            f"--push-to-hub {name}: {reason(error, name, api.endpoint)}. {folder} is whole; upload it with `hf upload {name} {folder}`"
        ) from error
    return str(made)


def reason(error: Exception, name: str, endpoint: str) -> str:
    """Why the hub did not take it, and what to do."""
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return f"{endpoint} does not know your token (401); run `hf auth login` with {WRITABLE}"
    if status == 403:
        return f"your token may not write there (403); take {WRITABLE}, or a name of your own instead of {name}"
    if status is not None:
        return f"{endpoint} answered {status}: {error}"
    return f"{endpoint} cannot be reached ({type(error).__name__}: {error}); look at the network"
