"""A checkable preference for small released models: a good answer is one line that begins with "Answer:". No template of a question is
shared by trained and held-out pairs.

    python -m tests.real.preference_pairs FOLDER     writes train.jsonl (300 pairs) and val.jsonl (60)
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

TRAINED = (
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "If I have {a} apples and buy {b} more, how many do I have?",
    "Sum up {a} and {b}, please.",
    "A box has {a} pens and {b} pencils. How many things are in it?",
)
HELD_OUT = ("There are {a} cats and {b} dogs. How many animals are there?", "How much is {a} and {b} together?", "Calculate {a} + {b}.")
LONG = (
    "To find the total, we add both numbers. The sum of {a} and {b} is {sum}.",
    "Let me think about it. {a} and {b} make {sum}.",
    "The result of adding {a} and {b} is equal to {sum}.",
    "Sure! {a} + {b} = {sum}. Is there anything else that you would like to know?",
)
MARK = "Answer:"


def make_pairs(templates: tuple[str, ...], count: int, first: int) -> list[dict[str, Any]]:
    """`count` pairs of a short answer in the wanted form and a longer one in another. Both have the right sum, so only the form counts."""
    pairs = []
    numbers = itertools.product(range(first, first + 40), range(3, 43))
    for index, (a, b) in enumerate(itertools.islice(numbers, 0, None, 5)):
        if len(pairs) == count:
            break
        values = {"a": a, "b": b, "sum": a + b}
        answers = (f"{MARK} {a + b}", LONG[index % len(LONG)].format(**values))
        question = {"role": "user", "content": templates[index % len(templates)].format(**values)}
        sides = ([{"role": "assistant", "content": answer}] for answer in answers)
        pairs.append({"prompt": [question], **dict(zip(("chosen", "rejected"), sides, strict=True))})
    return pairs


def is_preferred(text: str) -> bool:
    """The judge of a generated answer: one line that begins with the mark."""
    return text.strip().startswith(MARK) and "\n" not in text.strip()


def write_pairs(folder: Path) -> None:
    """Write the trained and the held-out pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", make_pairs(TRAINED, 300, 1)), ("val", make_pairs(HELD_OUT, 60, 41))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


if __name__ == "__main__":
    write_pairs(Path(sys.argv[1]))
