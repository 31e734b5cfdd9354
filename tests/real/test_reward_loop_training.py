"""Released weights learn two-digit sums from rewards for their own answers; the rate on held-out sums is counted before and after.

The judge (the last number of a greedy answer of plain transformers), the held-out sums, the settings and the bounds below were committed
before the first run.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from overtone.finetune.exporting.export import export
from overtone.finetune.monitoring.run_records import read_log
from tests.launch.launching import ALONE, ROOT, command
from tests.real.person_extraction import answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
STEPS, TOKENS = 24, 12
SETTINGS = {
    "model.lora": "true", "train.precision": "fp32", "train.lr": 2e-4, "train.warmup": 0.1, "train.steps": STEPS,
    "train.micro_tokens": 1024, "train.global_batch_tokens": 2048, "data.packing": "false", "log.trackers": "[]", "log.every": 1,
    "options.rewards.numeric_answer.weight": 1, "options.group": 4, "options.max_new_tokens": TOKENS,
}  # fmt: skip
LOST = 2
"""Most held-out sums of 40 that may be lost; a run that learns wins some."""


def make_sums() -> list[tuple[str, int]]:
    chance = random.Random(5)
    pairs = chance.sample([(one, other) for one in range(10, 60) for other in range(10, 40)], 240)
    return [(f"What is {one} + {other}? Reply with the number alone.", one + other) for one, other in pairs]


def test_sums_are_learned_from_rewards(chat_model: Path, tmp_path: Path, figures: list[str]) -> None:
    held_out, trained = make_sums()[:40], make_sums()[40:]
    rows = [{"prompt": [{"role": "user", "content": question}], "answer": total} for question, total in trained]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"recipe": "llm_grpo", "model.source": chat_model, "run.dir": tmp_path / "run", **SETTINGS}
    given |= {"data.train": tmp_path / "train.jsonl"}
    words = command("cpu", 1, "finetune/train.py", *(word for name, value in given.items() for word in (f"--{name}", value)))
    done = subprocess.run(words, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "step"]
    counts = []
    for folder in (chat_model, export(tmp_path / "run", tmp_path / "export", dtype="fp32")):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        found = [re.findall(r"\d+", text) for text in answer(model, folder, [question for question, _ in held_out], TOKENS)]
        counts.append(sum(bool(numbers) and int(numbers[-1]) == total for numbers, (_, total) in zip(found, held_out, strict=True)))
    first, last = (sum(step["reward"] for step in part) / 6 for part in (steps[:6], steps[-6:]))
    figures.append(
        f"llm_grpo, {STEPS} steps: {counts[0]} → {counts[1]} of 40 held-out sums right, mean reward {first:.2f} in the first and "
        f"{last:.2f} in the last six steps, largest mismatch {max(step['mismatch'] for step in steps):.1e}"
    )
    assert len(steps) == STEPS and max(step["mismatch"] for step in steps) < 1e-3
    assert last > first and counts[1] >= counts[0] - LOST
