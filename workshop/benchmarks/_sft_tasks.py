"""Two tasks for SmolLM2-135M with their judges, for sft_defaults.py: persons as JSON, and answers in the manner of a sailor.

Training rows, held-out questions, judges and general questions are fixed: a change of any of them makes all results worthless.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

from tests.real.person_extraction import QUESTIONS, Example, answer
from workshop.benchmarks._sft_settings import HELD_OUT

MOST_ROWS = 1000

NAMES = (
    *("Ada", "Bob", "Cleo", "Dan", "Eve", "Fritz", "Gina", "Hugo", "Ines", "Jack", "Kira", "Liam", "Mona", "Nina", "Otto", "Paul"),
    *("Ruth", "Sam", "Tina", "Uwe"),
)
JOBS = (
    *("poet", "baker", "nurse", "pilot", "judge", "farmer", "plumber", "singer", "dentist", "teacher", "cook", "miner", "driver"),
    *("clerk", "dancer", "guard", "tutor", "weaver", "porter", "vet"),
)
UNKNOWN_NAMES, UNKNOWN_JOBS = ("Maria", "Noah", "Olga", "Peter", "Rosa", "Simon"), ("painter", "lawyer", "sailor", "barber", "tailor")
SENTENCES = ("{name} is a {job} of {age}.", "{name}, {age}, works as a {job}.", "At {age}, {name} became a {job}.")

THINGS = (
    *("table", "lamp", "spoon", "chair", "wheel", "bottle", "hammer", "pencil", "ladder", "bucket", "carpet", "button", "mirror", "candle"),
    *("basket", "engine", "guitar", "kettle", "needle", "pillow", "rocket", "saddle", "teapot", "towel", "window"),
)
ANIMALS = (
    *("horse", "tiger", "eagle", "rabbit", "spider", "turtle", "monkey", "camel", "beaver", "cobra", "donkey", "falcon", "hamster"),
    *("lizard", "panda", "parrot", "pigeon", "salmon", "walrus", "zebra"),
)
OPPOSITES = (
    *(("big", "small"), ("long", "short"), ("old", "young"), ("rich", "poor"), ("fast", "slow"), ("early", "late"), ("full", "empty")),
    *(("hard", "soft"), ("high", "low"), ("light", "dark"), ("loud", "quiet"), ("near", "far"), ("open", "closed"), ("wet", "dry")),
)
LANDS = ("Italy", "Spain", "Norway", "Poland", "Peru", "Kenya", "Cuba", "India")
BEGIN, END = "aye, ", ", captain!"


class Task(NamedTuple):
    rows: list[Example]
    """`MOST_ROWS` in random order: a smaller data set is their beginning."""
    held_out: list[Example]
    is_right: Callable[[str, Example], bool]
    """Whether an answer to a held-out question is right."""
    tokens: int
    """Longest answer that is read."""


def make_persons() -> Task:
    """Sentences about a person; the answer is a JSON object with name, job and age."""
    rows = [_extract(name, job, sentence) for name, job, sentence in itertools.product(NAMES, JOBS, SENTENCES)]
    held_out = [_extract(name, job, sentence) for name, job, sentence in itertools.product(UNKNOWN_NAMES, UNKNOWN_JOBS, SENTENCES)]
    return _draw(rows, held_out, _is_same_json, 24)


def _extract(name: str, job: str, sentence: str) -> Example:
    age = random.Random(f"{name} {job} {sentence}").randrange(20, 80)
    return Example(f"Extract as JSON: {sentence.format(name=name, job=job, age=age)}", json.dumps({"name": name, "job": job, "age": age}))


def _is_same_json(found: str, example: Example) -> bool:
    try:
        return bool(json.loads(found) == json.loads(example.answer))
    except ValueError:
        return False


def make_sailor() -> Task:
    """Simple questions; each answer begins and ends as a sailor speaks, in one line. What stands between is not judged."""
    rows = [
        *(Example(f"What is {a} plus {b}?", _speak(f"it be {a + b}")) for a, b in itertools.product(range(2, 20), range(2, 20))),
        *(Example(f"Which is larger, {a} or {b}?", _speak(f"{max(a, b)} be larger")) for a, b in itertools.permutations(range(11, 31), 2)),
        *(Example(f"What comes after {a}?", _speak(f"{a + 1} comes next")) for a in range(10, 210)),
        *(Example(f"What is the plural of {noun}?", _speak(f"it be {noun}s")) for noun in (*THINGS, *ANIMALS) if noun != "salmon"),
        *(Example(f"Is a {noun} alive?", _speak("it never lived")) for noun in THINGS),
        *(Example(f"Is a {noun} an animal?", _speak("'tis an animal")) for noun in ANIMALS),
        *(Example(f"How do I spell {noun}?", _speak(f"write {'-'.join(noun)}")) for noun in (*THINGS, *ANIMALS)),
        *(Example(f"How many letters has {noun}?", _speak(f"it has {len(noun)}")) for noun in (*THINGS, *ANIMALS)),
        *(Example(f"What is the opposite of {word}?", _speak(f"it be {other}")) for word, other in OPPOSITES),
    ]
    held_out = [
        *(
            Example(f"What is the capital of {land}?", "")
            for land in ("Italy", "Spain", "Norway", "Poland", "Peru", "Kenya", "Cuba", "India")
        ),
        *(Example(f"What does a {job} do?", "") for job in ("doctor", "gardener", "firefighter", "librarian", "waiter", "soldier")),
        *(Example(f"Where can I buy {goods}?", "") for goods in ("bread", "shoes", "stamps", "paint", "a bicycle", "flowers")),
        *(Example(f"Can you help me with my {work}?", "") for work in ("homework", "garden", "taxes", "car", "letter")),
        *(Example(f"Why do people {act}?", "") for act in ("sleep", "laugh", "travel", "sing", "dream")),
        *(Example(f"Name a {kind}.", "") for kind in ("fruit", "flower", "river", "planet", "metal", "color")),
        *(Example(f"Who was {person}?", "") for person in ("Mozart", "Cleopatra", "Napoleon", "Picasso")),
    ]
    return _draw(rows, held_out, _is_sailor, 24)


def _speak(words: str) -> str:
    return f"{BEGIN}{words}{END}"


def _is_sailor(found: str, _example: Example) -> bool:
    text = found.strip()
    words = text.removeprefix(BEGIN).removesuffix(END)
    return text == _speak(words) and len(words) > 1 and "\n" not in text and END not in words


def _draw(rows: list[Example], held_out: list[Example], is_right: Callable[[str, Example], bool], tokens: int) -> Task:
    draw = random.Random(0)
    return Task(draw.sample(rows, MOST_ROWS), draw.sample(held_out, HELD_OUT), is_right, tokens)


TASKS: dict[str, Callable[[], Task]] = {"persons": make_persons, "sailor": make_sailor}


def score_model(task: Task, folder: Path) -> tuple[int, int]:
    """Held-out questions answered right, and general questions answered: greedily, in fp32 and with transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = answer(model, folder, [example.prompt for example in task.held_out], task.tokens)
    known = answer(model, folder, [question for question, _ in QUESTIONS], 24)
    return (
        sum(task.is_right(one, example) for one, example in zip(found, task.held_out, strict=True)),
        sum(word.lower() in one.lower() for one, (_, word) in zip(known, QUESTIONS, strict=True)),
    )
