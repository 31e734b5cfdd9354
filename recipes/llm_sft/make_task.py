"""Chats of a task that a tiny model can truly learn: reverse a word, or sort its letters.

    python -m recipes.llm_sft.make_task FOLDER [--rows 4000] [--seed 0]

    user: Reverse KLAD        assistant: DALK
    user: Sort HBE            assistant: BEH

Some chats have several such turns, and some a system prompt by which the letters of the answers stand apart. Nothing can be guessed from
the letters alone, and no question of `val.jsonl` is asked in `train.jsonl`: who answers it has learned to reverse and to sort.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finetune.errors import UserError, exit_code
from finetune.storage import files

Message = dict[str, str]

VERBS: dict[str, Callable[[str], str]] = {"Reverse": lambda word: word[::-1], "Sort": lambda word: "".join(sorted(word))}
SYSTEM = "Write the letters apart with dashes"
LETTERS = "ABCDEFGHIJKLMNOP"
SHORTEST, LONGEST = 3, 6
"""Letters of a word, all different. There are 12.7 million questions, so they cannot be learned by heart."""
TURNS = (1, 1, 2, 3)
"""Questions of a chat; each entry is as likely."""
SYSTEM_SHARE = 0.3
HELD_OUT = 20
"""One row of so many is for validation."""


def write(folder: Path, rows: int, seed: int) -> tuple[Path, Path]:
    """`train.jsonl` and `val.jsonl` in `folder`, of `rows` chats together. Same seed, same bytes. Raises `UserError` for too few."""
    if rows < HELD_OUT:
        raise UserError(f"--rows {rows}: at least {HELD_OUT} are needed, one of which is for validation")
    chance = random.Random(seed)
    val = [chat(chance, forbidden=frozenset()) for _ in range(rows // HELD_OUT)]
    asked = frozenset(question for row in val for question in questions(row))
    train = [chat(chance, asked) for _ in range(rows - len(val))]
    paths = folder / "train.jsonl", folder / "val.jsonl"
    for path, chats in zip(paths, (train, val), strict=True):
        files.write_text(path, "".join(json.dumps(row) + "\n" for row in chats))
    return paths


def chat(chance: random.Random, forbidden: frozenset[str]) -> dict[str, Any]:
    """One row, `{"messages": […]}`, without the questions that are forbidden."""
    apart = chance.random() < SYSTEM_SHARE
    messages: list[Message] = [{"role": "system", "content": SYSTEM}] if apart else []
    for _ in range(chance.choice(TURNS)):
        verb, word = ask(chance, forbidden)
        answer = VERBS[verb](word)
        messages.append({"role": "user", "content": f"{verb} {word}"})
        messages.append({"role": "assistant", "content": "-".join(answer) if apart else answer})
    return {"messages": messages}


def ask(chance: random.Random, forbidden: frozenset[str]) -> tuple[str, str]:
    """A verb and a word that are not forbidden together."""
    while True:
        verb, word = chance.choice([*VERBS]), "".join(chance.sample(LETTERS, chance.randint(SHORTEST, LONGEST)))
        if f"{verb} {word}" not in forbidden:
            return verb, word


def questions(row: dict[str, Any]) -> list[str]:
    """What the user says in a row."""
    return [message["content"] for message in row["messages"] if message["role"] == "user"]


def main(argv: list[str]) -> int:
    """Body of the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.llm_sft.make_task", description="Chats that ask to reverse and to sort.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    train, val = write(arguments.folder, arguments.rows, arguments.seed)
    print(f"{train} and {val.name}: {arguments.rows:,} chats, no question in both")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
