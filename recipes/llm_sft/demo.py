"""make demo-llm: a tiny random model learns to reverse words and to sort their letters, on a CPU, in two to three minutes.

It runs the real commands: chats through data_prep, training with packing in two processes, export, and answers by plain transformers.
The result is the share of held-out questions that are answered exactly, before and after; all figures are in runs/demo-llm/summary.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from finetune.monitoring.event_log import read_log
from finetune.storage import files
from finetune.storage.model_security import admit
from recipes import demo_runner

HERE = Path(__file__).resolve().parent
QUESTIONS_AT_ONCE = 64
LONGEST_ANSWER = 16
"""Tokens: six letters, five dashes and the end of the turn, and a few more for wrong answers."""


def main() -> int:
    """Run all stages in runs/demo-llm, which is emptied first, and print what the model learned."""
    home = Path("runs/demo-llm")
    return demo_runner.run_demo(home, commands(home), finish)


def commands(home: Path) -> dict[str, list[str]]:
    """A tiny base and its task, then what a user runs: data, train, export."""
    python, task, data, base = sys.executable, home / "task", home / "data", home / "base"
    rows = ["--data.train", data / "train.jsonl", "--data.val", task / "val.jsonl", "--run.dir", home / "run"]
    training = ["--recipe", "llm_sft", "--config", HERE / "debug.yaml", "--model.source", base, *rows]
    return {
        "base": [python, "-m", "recipes.llm_sft.tiny_checkpoint", str(base)],
        "task": [python, "-m", "recipes.llm_sft.make_task", str(task)],
        # data_prep would split by conversation; here no single question may be in both parts.
        "data": [python, "-m", "data_prep", "text", str(task / "train.jsonl"), "--out", str(data), "--val-share", "0"],
        "train": demo_runner.training_command("cpu.yaml", [], training),
        "export": [python, "-m", "finetune", "export", str(home / "run"), "--to", str(home / "export")],
    }


def finish(home: Path, seconds: demo_runner.Seconds) -> int:
    """Ask the held-out questions before and after training, write the figures to summary.json, and print them."""
    seconds = dict(seconds)
    with demo_runner.timed(seconds, "answers"):
        before, after = (exact_match(home / model, home / "task" / "val.jsonl") for model in ("base", "export"))
    figures = summarise(home, seconds, before, after)
    files.write_json(home / demo_runner.SUMMARY, figures)
    report(home, figures)
    return 0


def exact_match(model: Path, chats: Path) -> float:
    """Share of the assistant's turns in a file of chats that a model reproduces exactly, by greedy decoding from the messages before.

    `model`: any folder that AutoModelForCausalLM and AutoTokenizer load; no code of this package generates the answers.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from recipes.language.causal_model import language_model

    with admit(model, language_model()) as clean:
        tokenizer = AutoTokenizer.from_pretrained(clean, padding_side="left", trust_remote_code=False)
        answering = AutoModelForCausalLM.from_pretrained(clean, trust_remote_code=False, use_safetensors=True).eval()
    turns = [turn for line in chats.read_text(encoding="utf-8").splitlines() for turn in turns_of(json.loads(line)["messages"])]
    right = 0
    for start in range(0, len(turns), QUESTIONS_AT_ONCE):
        prompts, expected = zip(*turns[start : start + QUESTIONS_AT_ONCE], strict=True)
        given = tokenizer.apply_chat_template([*prompts], add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt")
        with torch.inference_mode():
            found = answering.generate(**given, do_sample=False, max_new_tokens=LONGEST_ANSWER)
        answers = tokenizer.batch_decode(found[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(answer == wanted for answer, wanted in zip(answers, expected, strict=True))
    return round(right / len(turns), 4)


def turns_of(messages: list[dict[str, str]]) -> list[tuple[list[dict[str, str]], str]]:
    """For each turn of the assistant: the messages before it, and its text."""
    return [(messages[:number], turn["content"]) for number, turn in enumerate(messages) if turn["role"] == "assistant"]


def summarise(home: Path, seconds: dict[str, float], before: float, after: float) -> dict[str, Any]:
    """The content of summary.json."""
    events = read_log(home / "run" / "log.jsonl")
    steps = [event for event in events if event["event"] == "step"]
    validation = [event["val/loss"] for event in events if event["event"] == "evaluation"]
    return {
        "exact_match_before": before,
        "exact_match_after": after,
        "loss": {"first": steps[0]["loss"], "last": steps[-1]["loss"], "validation": validation[-1]},
        "steps": len(steps),
        "seconds": demo_runner.with_total(seconds),
    }


def report(home: Path, figures: dict[str, Any]) -> None:
    """Print what the model learned, and where to look."""
    loss = figures["loss"]
    demo_runner.print_result(
        f"of questions that are not in the training data, {figures['exact_match_before']:.1%} are answered exactly before and "
        f"{figures['exact_match_after']:.1%} after; loss {loss['first']:.2f} → {loss['last']:.2f}; {figures['seconds']['all']:.0f} s",
        {
            "ask it": f'python -m finetune generate --model {home / "export"} --prompt "Reverse KLAD"',
            "the loss curve": home / "run" / "loss.png",
            "all figures": home / demo_runner.SUMMARY,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
