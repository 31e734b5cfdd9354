"""make demo-rewards: a tiny chat model that is right in about 60 % of its answers learns from rewards alone, in minutes on 2 idle cores.

It runs the commands of a user: `llm_sft` teaches a random model to reverse words and to sort their letters, and stops early; `llm_grpo`
then rewards right answers to other questions. Then plain transformers answers questions that are in no training data. The result is the
share of exact answers before and after the rewards; all figures are in runs/demo-rewards/summary.json.
"""

from __future__ import annotations

import json
import random
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
TASKS = {"Reverse": lambda word: word[::-1], "Sort": lambda word: "".join(sorted(word))}
WORD = 4
"""Letters of a word."""
CHATS, PROMPTS, HELD_OUT = 3000, 2000, 256
"""Numbers of rows; no question is in two of the files."""
FIRST_STEPS, STEPS = 90, 350
MAX_NEW_TOKENS = 8
"""Tokens: enough for four letters and the end of the turn, also if each letter is a token."""


def main() -> int:
    """Run all stages in runs/demo-rewards, which is emptied first, and print what the model learned."""
    home = Path("runs/demo-rewards")
    return demo_runner.run_demo(home, make_commands(home), measure, write_task(seed=0))


def write_task(seed: int) -> dict[str, str]:
    """Name → text of the files: chats, prompts with the expected answers, and held-out ones."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    words = ["".join(chance.sample(LETTERS, WORD)) for _ in range(2 * (CHATS + PROMPTS + HELD_OUT))]
    words = list(dict.fromkeys(words))[: CHATS + PROMPTS + HELD_OUT]
    rows = [(f"{verb} {word}", TASKS[verb](word)) for word in words for verb in [chance.choice([*TASKS])]]
    prompts = [{"prompt": [{"role": "user", "content": question}], "answer": answer} for question, answer in rows[CHATS:]]
    chats = [[{"role": "user", "content": question}, {"role": "assistant", "content": answer}] for question, answer in rows[:CHATS]]
    return {
        "chats.jsonl": to_lines({"messages": messages} for messages in chats),
        "prompts.jsonl": to_lines(prompts[:PROMPTS]),
        "held_out.jsonl": to_lines(prompts[PROMPTS:]),
    }


def to_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_commands(home: Path) -> dict[str, list[str]]:
    """By stage: make a tiny base, then the commands of a user: train on chats, export, train by rewards, export."""
    python, base, weak, strong = sys.executable, home / "base", home / "weak", home / "strong"
    tiny = ["--train.precision", "fp32", "--log.trackers", "[]"]
    first = ["--recipe", "llm_sft", "--config", RECIPES / "llm_sft" / "debug.yaml", "--model.source", base, "--run.dir", home / "sft_run"]
    first += ["--data.train", home / "chats.jsonl", "--data.val", "null", "--train.steps", FIRST_STEPS, *tiny]
    second = ["--recipe", "llm_grpo", "--model.source", weak, "--run.dir", home / "run", "--data.train", home / "prompts.jsonl"]
    second += ["--data.val", home / "held_out.jsonl", "--train.steps", STEPS, "--train.lr", "8e-4", "--eval.every", STEPS // 10, *tiny]
    second += ["--options.rewards.exact_match.weight", "1", "--options.max_new_tokens", MAX_NEW_TOKENS]
    # 32 prompts of 8 answers: a micro-batch for each process. Answers are short, so padding is faster than packing on a CPU.
    second += ["--train.micro_tokens", "2944", "--train.global_batch_tokens", "7360", "--data.packing", "false"]
    second += ["--options.rollout_batch", "128"]
    export = [python, "-m", "overtone", "export"]
    return {
        "base": [python, "-m", "overtone.recipes.llm_sft.model.tiny_checkpoint", str(base)],
        "chats": demo_runner.training_command("cpu.yaml", [], first),
        "weak": [*export, str(home / "sft_run"), "--to", str(weak)],
        "rewards": demo_runner.training_command("cpu.yaml", [], second),
        "strong": [*export, str(home / "run"), "--to", str(strong)],
    }


def measure(home: Path, seconds: demo_runner.Seconds) -> int:
    """Answer the held-out questions with both models, write the figures to summary.json, and print them."""
    seconds = dict(seconds)
    with demo_runner.time_stage(seconds, "answers"):
        before, after = (share_exact(home / model, home / "held_out.jsonl") for model in ("weak", "strong"))
    events = read_log(home / "run" / LOG)
    figures = {
        "exact_before": before,
        "exact_after": after,
        "curve": {str(event["step"]): event["val/reward"] for event in events if event["event"] == "evaluation"},
        "largest_mismatch": max(event["mismatch"] for event in events if event["event"] == "step"),
        **demo_runner.summarize_training(home / "run"),
        "seconds": demo_runner.add_total(seconds),
    }
    files.write_json(home / demo_runner.SUMMARY, figures)
    demo_runner.print_result(
        f"Exact answers to questions that are in no training data: {before:.1%} before the rewards, {after:.1%} after; "
        f"{figures['seconds']['all']:.0f} s",
        {
            "try it": overtone_command("generate", "--model", home / "strong", "--prompt", "Reverse KLAD"),
            "the answers": home / "run" / "rollouts.html",
            "all figures": home / demo_runner.SUMMARY,
        },
    )
    return 0


def share_exact(model: Path, rows: Path) -> float:
    """The share of the prompts that a model answers exactly, by greedy decoding. No code of this package generates the answers. `model`:
    any folder that AutoModelForCausalLM and AutoTokenizer load."""
    known = [json.loads(line) for line in read_lines(rows)]
    answers = generate_stock_answers(model, [row["prompt"] for row in known], MAX_NEW_TOKENS)
    return sum(text.strip() == row["answer"] for text, row in zip(answers, known, strict=True)) / len(known)


if __name__ == "__main__":
    sys.exit(main())
