"""make demo-preferences: a tiny model answers in two forms, and learns from pairs of answers to use one of them, in 45 s on 2 idle cores.

It runs the commands of a user: `llm_sft` teaches a random model to spell words, half of them with dashes; `llm_dpo` trains it on pairs in
which the answer with dashes is the chosen one. Then plain transformers answers questions that are in no training data. The result is the
share of answers with dashes before and after the second training; all figures are in runs/demo-preferences/summary.json.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.storage import files
from overtone.finetune.storage.text_lines import read_lines
from overtone.recipes import demo_runner
from overtone.recipes.language.stock_generation import generate_stock_answers

RECIPES = Path(__file__).resolve().parents[1]
LETTERS = "ABCDEFGHIJKLMNOP"
PREFERRED = re.compile(f"[{LETTERS}](-[{LETTERS}])+")
"""The judge of a whole answer: letters with a dash between each of them."""
CHATS, PAIRS, HELD_OUT = 600, 300, 64
"""Numbers of rows; no word is in two of the files."""
FIRST_STEPS, STEPS = 100, 16
MAX_NEW_TOKENS = 12
"""Tokens: enough for four letters, three dashes and the end of the turn."""


def main() -> int:
    """Run all stages in runs/demo-preferences, which is emptied first, and print what the model learned."""
    home = Path("runs/demo-preferences")
    return demo_runner.run_demo(home, make_commands(home), measure, write_task(seed=0))


def write_task(seed: int) -> dict[str, str]:
    """Name → text of the files: chats with either form, pairs of both, and held-out pairs."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    words = chance.sample([a + b + c + d for a in LETTERS for b in LETTERS for c in LETTERS for d in LETTERS], CHATS + PAIRS + HELD_OUT)
    chats = [[ask(word), answer(word, dashes=chance.random() < 0.5)] for word in words[:CHATS]]
    pairs = [
        {"prompt": [ask(word)], "chosen": [answer(word, dashes=True)], "rejected": [answer(word, dashes=False)]} for word in words[CHATS:]
    ]
    return {
        "chats.jsonl": to_lines({"messages": messages} for messages in chats),
        "pairs.jsonl": to_lines(pairs[:PAIRS]),
        "held_out.jsonl": to_lines(pairs[PAIRS:]),
    }


def ask(word: str) -> dict[str, str]:
    """The question for a word."""
    return {"role": "user", "content": f"Spell {word}"}


def answer(word: str, dashes: bool) -> dict[str, str]:
    """An answer in one of the two forms."""
    return {"role": "assistant", "content": "-".join(word) if dashes else word}


def to_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_commands(home: Path) -> dict[str, list[str]]:
    """By stage: make a tiny base, then the commands of a user: train on chats, export, train on pairs, export."""
    python, base, chat, preferred = sys.executable, home / "base", home / "chat", home / "preferred"
    tiny = ["--train.precision", "fp32", "--train.micro_tokens", "512", "--train.global_batch_tokens", "1280", "--log.trackers", "[]"]
    first = ["--recipe", "llm_sft", "--config", RECIPES / "llm_sft" / "debug.yaml", "--model.source", base, "--run.dir", home / "chat_run"]
    first += ["--data.train", home / "chats.jsonl", "--data.val", "null", "--train.steps", FIRST_STEPS, *tiny]
    second = ["--recipe", "llm_dpo", "--model.source", chat, "--run.dir", home / "run", "--data.train", home / "pairs.jsonl"]
    second += ["--data.val", home / "held_out.jsonl", "--train.steps", STEPS, "--train.lr", "3e-4", "--eval.every", STEPS, *tiny]
    export = [python, "-m", "overtone", "export"]
    return {
        "base": [python, "-m", "overtone.recipes.llm_sft.model.tiny_checkpoint", str(base)],
        "chats": demo_runner.training_command("cpu.yaml", [], first),
        "chat": [*export, str(home / "chat_run"), "--to", str(chat)],
        "pairs": demo_runner.training_command("cpu.yaml", [], second),
        "preferred": [*export, str(home / "run"), "--to", str(preferred)],
    }


def measure(home: Path, seconds: demo_runner.Seconds) -> int:
    """Answer the held-out questions with both models, write the figures to summary.json, and print them."""
    seconds = dict(seconds)
    with demo_runner.time_stage(seconds, "answers"):
        before, after = (share_preferred(home / model, home / "held_out.jsonl") for model in ("chat", "preferred"))
    evaluations = [event for event in read_log(home / "run" / LOG) if event["event"] == "evaluation"]
    figures = {
        "preferred_before": before,
        "preferred_after": after,
        "accuracy": evaluations[-1]["val/accuracy"],
        "kl": evaluations[-1]["val/kl"],
        **demo_runner.summarize_training(home / "run"),
        "seconds": demo_runner.add_total(seconds),
    }
    files.write_json(home / demo_runner.SUMMARY, figures)
    demo_runner.print_result(
        f"Answers with dashes to questions that are in no training data: {before:.1%} before the pairs, {after:.1%} after; "
        f"{evaluations[-1]['val/accuracy']:.1%} of the held-out pairs are ranked right; {figures['seconds']['all']:.0f} s",
        {
            "try it": overtone_command("generate", "--model", home / "preferred", "--prompt", "Spell KLAD"),
            "the loss curve": home / "run" / "loss.png",
            "all figures": home / demo_runner.SUMMARY,
        },
    )
    return 0


def share_preferred(model: Path, pairs: Path) -> float:
    """The share of the prompts that a model answers in the preferred form, by greedy decoding. No code of this package generates the
    answers. `model`: any folder that AutoModelForCausalLM and AutoTokenizer load."""
    answers = generate_stock_answers(model, [json.loads(line)["prompt"] for line in read_lines(pairs)], MAX_NEW_TOKENS)
    return sum(PREFERRED.fullmatch(text) is not None for text in answers) / len(answers)


if __name__ == "__main__":
    sys.exit(main())
