"""Digests of the rewards, by which a run that resumes notices that they have changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.recipes.llm_grpo.options import Reward, Rewards
from overtone.recipes.llm_grpo.rewards.reward_scoring import BUILT_IN

NO_INFLUENCE = {"weight", "file", "seconds", "key_variable"}
"""Settings that decide no reward, or are compared otherwise: weights by their value, files by their content."""


def digest_rewards(rewards: Rewards) -> dict[str, str]:
    """Return a digest of the settings and the file of each built-in reward that is set, and of the file with functions as `functions`. A
    digest, since a checkpoint is given to others and a setting can be private. Raises `UserError` for a file that cannot be read."""
    found = dict[str, str]()
    for name in BUILT_IN:
        reward: Reward | None = getattr(rewards, name)
        if reward is not None:
            settings = json.dumps(reward.model_dump(mode="json", exclude=NO_INFLUENCE), sort_keys=True).encode()
            file: Path | None = getattr(reward, "file", None)
            found[name] = _digest(settings + (b"" if file is None else _read(file, f"options.rewards.{name}.file")))
    if rewards.functions is not None:
        found["functions"] = _digest(_read(rewards.functions, "options.rewards.functions"))
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _read(path: Path, option: str) -> bytes:
    try:
        return input_files.read_bytes(path)
    except OSError as error:
        raise UserError(f"{option}: {path}: {error.strerror}") from None
