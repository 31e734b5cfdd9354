"""A task for small released models, persons as JSON, and general questions that show what training made a model forget.

Names and jobs of the held-out sentences are in no training row.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

TRAINED = (
    ("Ada", "Bob", "Cleo", "Dan", "Eve", "Fritz", "Gina", "Hugo", "Ines", "Jack", "Kira", "Liam"),
    ("poet", "baker", "nurse", "pilot", "judge", "farmer", "plumber", "singer", "dentist", "teacher"),
)
HELD_OUT = (("Maria", "Noah", "Olga", "Peter", "Rosa", "Simon"), ("painter", "lawyer", "sailor", "barber", "tailor"))
SENTENCES = (
    "{name} is a {job} and is {age} years old.",
    "My friend {name}, {age}, works as a {job}.",
    "At {age}, {name} became a {job}.",
)
QUESTIONS = (
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Germany?", "Berlin"),
    ("What is the capital of England?", "London"),
    ("What is the capital of Russia?", "Moscow"),
    ("What is the capital of Greece?", "Athens"),
    ("What is the capital of Egypt?", "Cairo"),
    ("What is the capital of China?", "Beijing"),
    ("Who wrote Hamlet?", "Shakespeare"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Who painted the Mona Lisa?", "Leonardo"),
    ("Who discovered gravity?", "Newton"),
    ("Who developed the theory of relativity?", "Einstein"),
    ("Which planet is known as the Red Planet?", "Mars"),
    ("What is the largest ocean on Earth?", "Pacific"),
    ("What is the chemical formula of water?", "H2O"),
    ("What gas do plants absorb from the air?", "carbon dioxide"),
    ("How many days are in a week?", "7"),
    ("What is 2 + 3?", "5"),
    ("What color is the sky on a clear day?", "blue"),
    ("What is the opposite of hot?", "cold"),
    ("What language is spoken in Brazil?", "Portuguese"),
    ("What is the tallest mountain in the world?", "Everest"),
    ("What is the longest river in Africa?", "Nile"),
    ("What organ pumps blood through the body?", "heart"),
    ("What is the boiling point of water in degrees Celsius?", "100"),
    ("What is the currency of Japan?", "yen"),
    ("What is the currency of the United States?", "dollar"),
    ("What is the main ingredient of bread?", "flour"),
    ("Which metal has the symbol Fe?", "iron"),
)
"""Questions that SmolLM2-135M-Instruct answers, with a word of the right answer."""


class Example(NamedTuple):
    prompt: str
    answer: str

    def as_row(self) -> dict[str, list[dict[str, str]]]:
        return {"messages": [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.answer}]}


class Scores(NamedTuple):
    extracted: int
    """Held-out sentences with exactly the right JSON, of `len(make_examples(*HELD_OUT))`."""
    known: int
    """General questions answered, of `len(QUESTIONS)`."""


def make_examples(names: tuple[str, ...], jobs: tuple[str, ...]) -> list[Example]:
    """Each name with each job, in one of the sentences, aged 20 to 79."""
    examples = []
    for index, (name, job) in enumerate(itertools.product(names, jobs)):
        age = 20 + 7 * index % 60
        sentence = SENTENCES[index % len(SENTENCES)].format(name=name, job=job, age=age)
        examples.append(Example(f"Extract the person as JSON: {sentence}", json.dumps({"name": name, "job": job, "age": age})))
    return examples


def write_rows(path: Path, examples: list[Example]) -> Path:
    path.write_text("".join(json.dumps(example.as_row()) + "\n" for example in examples))
    return path


def score_model(folder: Path) -> Scores:
    """Answer the held-out sentences and the general questions greedily, in fp32 and with transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    held_out = make_examples(*HELD_OUT)
    extractions = answer(model, folder, [example.prompt for example in held_out], 32)
    answers = answer(model, folder, [question for question, _ in QUESTIONS], 24)
    return Scores(
        sum(found.strip() == example.answer for found, example in zip(extractions, held_out, strict=True)),
        sum(word.lower() in found.lower() for found, (_, word) in zip(answers, QUESTIONS, strict=True)),
    )


def answer(model: PreTrainedModel, folder: Path, prompts: list[str], tokens: int) -> list[str]:
    """Greedy answers of at most `tokens` tokens to single user messages, as one batch."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False)
    made = model.generate(**batch, max_new_tokens=tokens, do_sample=False)
    return tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
