"""make demo-llm: a tiny random model learns to reverse words and to sort their letters, on a CPU in two to three minutes.

It runs the commands of a user: data preparation, training with packing in two processes, and export. Then plain transformers answers
questions that are not in the training data. The result is the share of exact answers before and after training; all figures are in
runs/demo-llm/summary.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.storage import files
from overtone.finetune.storage.text_lines import read_lines
from overtone.recipes import demo_runner
from overtone.recipes.language.stock_generation import generate_stock_answers

HERE = Path(__file__).resolve().parent
MAX_NEW_TOKENS = 16
"""Tokens: enough for six letters, five dashes and the end of the turn; wrong answers may be longer."""


def main() -> int:
    """Run all stages in runs/demo-llm, which is emptied first, and print what the model learned."""
    home = Path("runs/demo-llm")
    return demo_runner.run_demo(home, make_commands(home), measure)


def make_commands(home: Path) -> dict[str, list[str]]:
    """By stage: make a tiny base and its task, then the commands of a user: prepare data, train, export."""
    python, task, data, base = sys.executable, home / "task", home / "data", home / "base"
    rows = ["--data.train", data / "train.jsonl", "--data.val", task / "val.jsonl", "--run.dir", home / "run"]
    training = ["--recipe", "llm_sft", "--config", HERE / "debug.yaml", "--model.source", base, *rows]
    return {
        "base": [python, "-m", "overtone.recipes.llm_sft.model.tiny_checkpoint", str(base)],
        "task": [python, "-m", "overtone.recipes.llm_sft.toy_chats", str(task)],
        # --val-share 0: data_prep would split by conversation, and a question could then be in both parts.
        "data": [python, "-m", "overtone", "text", str(task / "train.jsonl"), "--out", str(data), "--val-share", "0"],
        "train": demo_runner.training_command("cpu.yaml", [], training),
        "export": [python, "-m", "overtone", "export", str(home / "run"), "--to", str(home / "export")],
    }


def measure(home: Path, seconds: demo_runner.Seconds) -> int:
    """Answer the held-out questions with the base and with the export, write the figures to summary.json, and print them."""
    seconds = dict(seconds)
    with demo_runner.time_stage(seconds, "answers"):
        before, after = (exact_match(home / model, home / "task" / "val.jsonl") for model in ("base", "export"))
    figures = make_summary(home, seconds, before, after)
    files.write_json(home / demo_runner.SUMMARY, figures)
    print_summary(home, figures)
    return 0


def exact_match(model: Path, chats: Path) -> float:
    """The share of the assistant's turns in a file of chats that a model reproduces exactly, by greedy decoding after the messages before.

    `model`: any folder that AutoModelForCausalLM and AutoTokenizer load. No code of this package generates the answers.
    """
    turns = [pair for line in read_lines(chats) for pair in split_turns(json.loads(line)["messages"])]
    answers = generate_stock_answers(model, [prompt for prompt, _ in turns], MAX_NEW_TOKENS)
    correct = sum(answer == expected for answer, (_, expected) in zip(answers, turns, strict=True))
    return round(correct / len(turns), 4)


def split_turns(messages: list[dict[str, str]]) -> list[tuple[list[dict[str, str]], str]]:
    """For each turn of the assistant: the messages before it, and its text."""
    return [(messages[:number], turn["content"]) for number, turn in enumerate(messages) if turn["role"] == "assistant"]


def make_summary(home: Path, seconds: dict[str, float], before: float, after: float) -> dict[str, Any]:
    """The content of summary.json."""
    return {
        "exact_match_before": before,
        "exact_match_after": after,
        **demo_runner.summarize_training(home / "run"),
        "seconds": demo_runner.add_total(seconds),
    }


def print_summary(home: Path, figures: dict[str, Any]) -> None:
    """Print the result, and where to find more."""
    loss = figures["loss"]
    demo_runner.print_result(
        f"Exact answers to questions that are not in the training data: {figures['exact_match_before']:.1%} before training, "
        f"{figures['exact_match_after']:.1%} after; loss {loss['first']:.2f} → {loss['last']:.2f}; {figures['seconds']['all']:.0f} s",
        {
            "try it": overtone_command("generate", "--model", home / "export", "--prompt", "Reverse KLAD"),
            "the loss curve": home / "run" / "loss.png",
            "all figures": home / demo_runner.SUMMARY,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
