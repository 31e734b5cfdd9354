"""Upload an exported model to the Hugging Face Hub with huggingface_hub."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError

WRITABLE = "a token with write access (huggingface.co/settings/tokens)"


def check_repository(name: str) -> None:
    """Check the repository name and the token before the export. Raises `UserError`."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not exported for type checkers

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(
            f"--push-to-hub {name}: not a repository name ({error}); give OWNER/MODEL, as in --push-to-hub me/my-model"
        ) from None
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"--push-to-hub {name}: HF_HUB_OFFLINE is set, so uploads are disabled; unset it, or remove the flag")
    if get_token() is None:
        raise UserError(f"--push-to-hub {name}: you are not logged in; run `hf auth login` with {WRITABLE}, or set HF_TOKEN")


def push(folder: Path, name: str, private: bool) -> str:
    """Upload a folder to a repository, which is created if it does not exist; returns its URL.

    Raises `UserError` for a link or another irregular file in the folder, and with the command that retries the upload; the folder is not
    changed.
    """
    from huggingface_hub import HfApi

    for path in sorted(folder.rglob("*")):
        if not (S_ISREG(mode := path.lstat().st_mode) or S_ISDIR(mode)):
            what = "a link, and an upload would publish the file that it points to" if S_ISLNK(mode) else "no regular file"
            raise UserError(f"--push-to-hub {name}: {path} is {what}; remove it, or replace it with a copy")
    api = HfApi()
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Upload an exported model")
    except Exception as error:  # the hub client raises many unrelated types for refused requests and network errors
        raise UserError(
            f"--push-to-hub {name}: {explain_failure(error, name, api.endpoint)}. The export in {folder} is complete; "
            f"upload it with `{overtone_command('export', folder, '--push-to-hub', name, *(['--private'] if private else []))}`"
        ) from error
    return str(made)


def explain_failure(error: Exception, name: str, endpoint: str) -> str:
    """Return why the upload failed, and what to do."""
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return f"{endpoint} rejects your token (401); run `hf auth login` with {WRITABLE}"
    if status == 403:
        return f"your token has no write access to {name} (403); use {WRITABLE}, or a repository of your own"
    if status is not None:
        return f"{endpoint} returned status {status}: {error}"
    return f"{endpoint} cannot be reached ({type(error).__name__}: {error}); check the network"
