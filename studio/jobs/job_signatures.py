"""Signatures of jobs, which distinguish the jobs that the user has started from those that came with a folder. The key is outside of it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files

BYTES = 32
"""Length of the key."""


def find_key() -> Path:
    """Return the path of this user's key: `$XDG_STATE_HOME/overtone/studio.key`, by default below `~/.local/state`."""
    state = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))  # noqa: PTH111 - as `cache_home`
    return state.resolve() / "overtone" / "studio.key"


def sign_text(text: str) -> str:
    """Return the signature of a text with this user's key, which is made at the first use. Raises `UserError` if it cannot be."""
    path = find_key()
    with files.explain_write_errors(path.parent):
        if not path.exists():
            files.make_private(path.parent)
            files.write_if_absent(path, secrets.token_bytes(BYTES), 0o600)
    key = read_key()
    if key is None:
        raise UserError(f"{path} is not the key that the studio made, with which it signs its jobs; remove it")
    return _compute(key, text)


def is_signed(text: str, signature: str) -> bool:
    """Return whether a signature is that of a text with this user's key."""
    key = read_key()
    return key is not None and hmac.compare_digest(_compute(key, text).encode(), signature.encode(errors="replace"))


def read_key() -> bytes | None:
    """Return this user's key; None if there is none yet."""
    try:
        key = input_files.read_bytes(find_key(), BYTES)
    except OSError:
        return None
    return key if len(key) == BYTES else None


def _compute(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
