"""Commands that a job may run: verbs from a fixed list, and words that stay in the folder of the studio."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from overtone.finetune.addresses import hide_word
from overtone.finetune.argument_parsing import check_choice
from overtone.finetune.command_lines import join_words
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import built_in_recipes

QUEUED = ("voice", "codes", "images", "train", "select", "eval-voice", "generate")
"""Verbs that need the GPU or all cores: one at a time."""
SERVERS = ("review", "serve")
"""Verbs that run until they are stopped."""
OTHERS = ("text", "report", "check-dataset", "check", "plan", "export")
VERBS = (*QUEUED, *OTHERS, *SERVERS)
LONGEST_WORD = 20_000
MOST_WORDS = 500
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*::?//", re.IGNORECASE)
TEXTS = ("--text", "--prompt", "--system")
"""Options whose value is read by nobody as a path."""
TERMINAL_ONLY = ("--push-to-hub", "--host", "--trusted-proxy", "--token-file")
"""Options that publish, or open the machine to others."""


def check_command(place: Path, verb: str, words: Sequence[str]) -> None:
    """Raise `UserError` for a command that the studio does not start: another verb, a recipe that is code of its own, or a path outside of
    `place`, also through a link. A job's record may come from a downloaded folder, so it is checked before each start."""
    if verb not in VERBS:
        raise UserError(f"the studio does not start `overtone {verb}`; its verbs are {', '.join(VERBS)}")
    if len(words) > MOST_WORDS:
        raise UserError(f"a command of {len(words)} words; the studio starts commands of up to {MOST_WORDS}")
    for index, word in enumerate(words):
        if len(word) > LONGEST_WORD or "\0" in word:
            raise UserError(f"a word of the command has {len(word)} characters or a null character; shorten {word[:40]!r}")
        flag, _, value = word.partition("=")
        if flag in TERMINAL_ONLY:
            raise UserError(f"the studio does not start commands with {flag}; copy the command and start it in a terminal")
        if flag in ("--recipe", "--launch"):
            given = value or (words[index + 1] if index + 1 < len(words) else "")
            check_choice(flag, given, built_in_recipes() if flag == "--recipe" else ("fsdp2", "ddp", "hsdp"))
        if not (index and words[index - 1] in TEXTS) and flag not in TEXTS:
            _check_path(place, value if flag.startswith("--") and value else word)


def _check_path(place: Path, word: str) -> None:
    if hide_word(word) != word:
        raise UserError("an address with a password would be saved in the job's folder; start this command in a terminal")
    path = Path(word)
    outside = path.is_absolute() or ".." in path.parts or word.startswith("~") or ADDRESS.search(word)
    if outside or not (place / path).resolve().is_relative_to(place.resolve()):
        raise UserError(f"{word[:200]} leads out of the studio's folder; copy the data into it, or start this command in a terminal")


def show_command(verb: str, words: Sequence[str]) -> str:
    """Return the command line for a shell in the studio's folder."""
    return join_words(["overtone", verb, *words])
