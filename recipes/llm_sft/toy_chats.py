"""Makes chats of a task that a tiny model can learn: reverse a word, or sort its letters.

    python -m overtone.recipes.llm_sft.toy_chats FOLDER [--rows 4000] [--seed 0]

    user: Reverse KLAD        assistant: DALK
    user: Sort HBE            assistant: BEH

Some chats have several such turns, and some have a system prompt that requests dashes between the letters of the answers. The letters
alone do not tell which answer is right, and no question of `val.jsonl` is in `train.jsonl`: a model that answers these has learned to
reverse and to sort.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

Message = dict[str, str]

VERBS: dict[str, Callable[[str], str]] = {"Reverse": lambda word: word[::-1], "Sort": lambda word: "".join(sorted(word))}
SYSTEM = "Write the letters apart with dashes"
LETTERS = "ABCDEFGHIJKLMNOP"
SHORTEST, LONGEST = 3, 6
"""Number of letters of a word; all are different. There are 12.7 million questions, too many to memorize."""
TURNS = (1, 1, 2, 3)
"""Number of questions of a chat; one of these at random."""
SYSTEM_SHARE = 0.3
"""Share of chats with the system prompt."""
ROWS_PER_VAL_ROW = 20
"""One of so many rows is for validation."""


def write_task(folder: Path, rows: int, seed: int) -> tuple[Path, Path]:
    """Write `train.jsonl` and `val.jsonl` with `rows` chats in total. Same seed, same bytes. Raises `UserError` for too few rows."""
    if rows < ROWS_PER_VAL_ROW:
        raise UserError(f"--rows {rows}: must be at least {ROWS_PER_VAL_ROW}, one of which is for validation")
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    val = [make_chat(chance, forbidden=frozenset()) for _ in range(rows // ROWS_PER_VAL_ROW)]
    held_out = frozenset(question for row in val for question in list_questions(row))
    train = [make_chat(chance, held_out) for _ in range(rows - len(val))]
    paths = folder / "train.jsonl", folder / "val.jsonl"
    for path, chats in zip(paths, (train, val), strict=True):
        files.write_text(path, "".join(json.dumps(row) + "\n" for row in chats))
    return paths


def make_chat(chance: random.Random, forbidden: frozenset[str]) -> dict[str, Any]:
    """One row, `{"messages": […]}`, with none of the forbidden questions."""
    dashes = chance.random() < SYSTEM_SHARE
    messages: list[Message] = [{"role": "system", "content": SYSTEM}] if dashes else []
    for _ in range(chance.choice(TURNS)):
        verb, word = draw_question(chance, forbidden)
        answer = VERBS[verb](word)
        messages.append({"role": "user", "content": f"{verb} {word}"})
        messages.append({"role": "assistant", "content": "-".join(answer) if dashes else answer})
    return {"messages": messages}


def draw_question(chance: random.Random, forbidden: frozenset[str]) -> tuple[str, str]:
    """A verb and a word that are not a forbidden question."""
    while True:
        verb, word = chance.choice([*VERBS]), "".join(chance.sample(LETTERS, chance.randint(SHORTEST, LONGEST)))
        if f"{verb} {word}" not in forbidden:
            return verb, word


def list_questions(row: dict[str, Any]) -> list[str]:
    """The user's messages of a row."""
    return [message["content"] for message in row["messages"] if message["role"] == "user"]


def main(argv: list[str]) -> int:
    """Body of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m overtone.recipes.llm_sft.toy_chats",
        description="Write chats about reversing and sorting letters.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, help="where to write train.jsonl and val.jsonl")
    parser.add_argument("--rows", type=int, default=4000, help="number of chats in both files (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files (default %(default)s)")
    arguments = parser.parse_args(argv)
    train, val = write_task(arguments.folder, arguments.rows, arguments.seed)
    print_line(f"{train} and {val.name}: {arguments.rows:,} chats; no question is in both files")
    return 0


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
