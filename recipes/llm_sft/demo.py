"""make demo-llm: a tiny random model learns to reverse words and to sort their letters, on a CPU, in two to three minutes.

Every part is the real one: chats through data_prep, training with packing on two processes, export, and answers from plain transformers.
What counts is how many held-out questions are answered exactly, before and after; the figures are in runs/demo-llm/summary.json.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from finetune import files
from finetune.events import read_log
from finetune.model_gate import admit
from finetune.where import configs_folder

HERE = Path(__file__).resolve().parent
QUESTIONS_AT_ONCE = 64
LONGEST_ANSWER = 16
"""Tokens: six letters, five dashes and the end of the turn, with some to spare for what is wrong."""


def main() -> int:
    """Run the chain into runs/demo-llm, which is made anew, and print what was learned."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that fight for two cores make a tiny step ten times slower
    home = Path("runs/demo-llm")
    if home.exists():
        files.discard(home)
    seconds: dict[str, float] = {}
    for stage, command in commands(home).items():
        began = time.monotonic()
        print(f"\n$ {shlex.join([Path(command[0]).name, *command[1:]])}", flush=True)
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            print(f"error: the demo stopped at `{stage}` (exit code {done.returncode}); what it said stands above", file=sys.stderr)
            return done.returncode
        seconds[stage] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    before, after = (exact_match(home / model, home / "task" / "val.jsonl") for model in ("base", "export"))
    seconds["answers"] = round(time.monotonic() - began, 1)
    figures = summarise(home, seconds, before, after)
    files.write_json(home / "summary.json", figures)
    report(home, figures)
    return 0


def commands(home: Path) -> dict[str, list[str]]:
    """A tiny base and its task, then what a user runs: data, train, export."""
    python, task, data, base = sys.executable, home / "task", home / "data", home / "base"
    launcher = shutil.which("accelerate", path=str(Path(python).parent)) or "accelerate"
    launch = [launcher, "launch", "--config_file", str(configs_folder() / "cpu.yaml"), "--num_processes", "2"]
    script = ["finetune/train.py"] if Path("finetune/train.py").is_file() else ["-m", "finetune.train"]  # a clone, or an installed copy
    told = {"--config": HERE / "debug.yaml", "--model.source": base, "--data.train": data / "train.jsonl", "--data.val": task / "val.jsonl"}
    options = [str(word) for pair in {**told, "--run.dir": home / "run"}.items() for word in pair]
    return {
        "base": [python, "-m", "recipes.llm_sft.tiny", str(base)],
        "task": [python, "-m", "recipes.llm_sft.make_task", str(task)],
        # It would split by itself, but conversation by conversation; here no single question may be in both parts.
        "data": [python, "-m", "data_prep", "text", str(task / "train.jsonl"), "--out", str(data), "--val-share", "0"],
        "train": [*launch, *script, "--recipe", "llm_sft", *options],
        "export": [python, "-m", "finetune", "export", str(home / "run"), "--to", str(home / "export")],
    }


def exact_match(model: Path, chats: Path) -> float:
    """Share of the assistant's turns in a file of chats that a model gives word for word, greedily, with all that was said before.

    `model`: any folder that AutoModelForCausalLM and AutoTokenizer load; nothing of this package takes part in the answer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .causal_model import language_model

    with admit(model, language_model()) as clean:
        tokenizer = AutoTokenizer.from_pretrained(clean, padding_side="left", trust_remote_code=False)
        answering = AutoModelForCausalLM.from_pretrained(clean, trust_remote_code=False, use_safetensors=True).eval()
    turns = [turn for line in chats.read_text(encoding="utf-8").splitlines() for turn in turns_of(json.loads(line)["messages"])]
    right = 0
    for start in range(0, len(turns), QUESTIONS_AT_ONCE):
        asked, expected = zip(*turns[start : start + QUESTIONS_AT_ONCE], strict=True)
        given = tokenizer.apply_chat_template([*asked], add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt")
        with torch.inference_mode():
            found = answering.generate(**given, do_sample=False, max_new_tokens=LONGEST_ANSWER)
        answers = tokenizer.batch_decode(found[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(answer == wanted for answer, wanted in zip(answers, expected, strict=True))
    return round(right / len(turns), 4)


def turns_of(messages: list[dict[str, str]]) -> list[tuple[list[dict[str, str]], str]]:
    """For each turn of the assistant, what was said before it, and what it says."""
    return [(messages[:number], said["content"]) for number, said in enumerate(messages) if said["role"] == "assistant"]


def summarise(home: Path, seconds: dict[str, float], before: float, after: float) -> dict[str, Any]:
    """What is written to summary.json."""
    events = read_log(home / "run" / "log.jsonl")
    steps = [event for event in events if event["event"] == "step"]
    validation = [event["val/loss"] for event in events if event["event"] == "evaluation"]
    return {
        "exact_match_before": before,
        "exact_match_after": after,
        "loss": {"first": steps[0]["loss"], "last": steps[-1]["loss"], "validation": validation[-1]},
        "steps": len(steps),
        "seconds": {**seconds, "all": round(sum(seconds.values()), 1)},
    }


def report(home: Path, figures: dict[str, Any]) -> None:
    """What was learned, and where to look."""
    loss = figures["loss"]
    print(
        f"\nof questions that were never asked in training, {figures['exact_match_before']:.1%} are answered exactly before and "
        f"{figures['exact_match_after']:.1%} after; loss {loss['first']:.2f} → {loss['last']:.2f}; {figures['seconds']['all']:.0f} s\n"
        f'  ask it            python -m finetune generate --model {home / "export"} --prompt "Reverse KLAD"\n'
        f"  the loss curve    {home / 'run' / 'loss.png'}\n"
        f"  all figures       {home / 'summary.json'}"
    )


if __name__ == "__main__":
    sys.exit(main())
