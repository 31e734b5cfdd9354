"""Pairs of a courteous answer and a rude one to the same question, as a command writes them:

    python -m tests.real.courtesy_pairs FOLDER

Which answer is better follows from the lists below. The held-out pairs share no question, no topic and no phrase with the others.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Phrases(NamedTuple):
    """Parts from which pairs are put together."""

    questions: tuple[str, ...]
    topics: tuple[str, ...]
    courteous: tuple[str, ...]
    rude: tuple[str, ...]


TRAINED = Phrases(
    ("Can you help me with {topic}?", "I have a question about {topic}.", "How do I begin with {topic}?"),
    ("my bicycle", "a cake", "the heating", "my tax form", "a letter", "the garden", "a broken lamp", "my phone", "chess", "the train"),
    (
        "Of course, I would be glad to help you with {topic}.",
        "Thank you for asking. Let us look at {topic} together.",
        "Certainly! Please tell me more about {topic}.",
        "I am happy to explain {topic} to you.",
        "That is a good question. I will gladly show you {topic}.",
    ),
    (
        "Only a fool would ask about {topic}.",
        "Leave me alone with {topic}.",
        "I do not care about {topic}. Go away.",
        "Are you too stupid for {topic}?",
        "Stop wasting my time with {topic}.",
    ),
)
HELD_OUT = Phrases(
    ("Could somebody explain {topic}?", "What should I know about {topic}?"),
    ("a violin", "the washing machine", "my garage", "soup", "poetry", "the moon"),
    (
        "It would be my pleasure to assist you with {topic}, my friend.",
        "What a lovely idea. Here is how {topic} works, step by step.",
        "You are very welcome to ask me about {topic} at any time.",
    ),
    (
        "Shut up about {topic}, you idiot.",
        "Nobody wants to hear your nonsense about {topic}.",
        "You are an annoying person, and {topic} is none of my business.",
    ),
)


def make_pairs(phrases: Phrases, count: int) -> list[dict[str, Any]]:
    """`count` different pairs, in an order in which all phrases occur early."""
    cases = itertools.product(phrases.topics, phrases.questions, phrases.courteous, phrases.rude)
    every = sorted(enumerate(cases), key=lambda each: each[0] * 7919 % 1_000_003)
    return [
        {
            "prompt": [{"role": "user", "content": question.format(topic=topic)}],
            "chosen": [{"role": "assistant", "content": courteous.format(topic=topic)}],
            "rejected": [{"role": "assistant", "content": rude.format(topic=topic)}],
        }
        for _, (topic, question, courteous, rude) in every[:count]
    ]


def write_pairs(folder: Path) -> tuple[Path, Path]:
    """Write 300 pairs to train.jsonl and 40 held-out ones to held_out.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.jsonl", folder / "held_out.jsonl"
    for path, phrases, count in zip(paths, (TRAINED, HELD_OUT), (300, 40), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in make_pairs(phrases, count)))
    return paths


if __name__ == "__main__":
    write_pairs(Path(sys.argv[1]))
