"""SmolLM2 learns to prefer courteous answers, also of phrases that it was not trained on, and transformers computes the same rewards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from overtone.finetune.exporting.export import export
from overtone.finetune.monitoring.run_records import read_log
from tests.launch.launching import ALONE, ROOT, command
from tests.real.courtesy_pairs import write_pairs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = 8
REACHED = 0.9
"""Least share of held-out pairs with the higher reward on the courteous answer. With sides swapped, it is near 0."""


def test_rewards_of_held_out_pairs(chat_model: Path, tmp_path: Path, figures: list[str]) -> None:
    trained, held_out = write_pairs(tmp_path / "pairs")
    given = {
        "recipe": "llm_reward", "model.source": chat_model, "data.train": trained, "data.val": held_out, "run.dir": tmp_path / "run",
        "model.lora": "true", "data.packing": "true", "train.steps": STEPS, "train.global_batch_tokens": 512, "train.micro_tokens": 512,
        "train.lr": 1e-3, "train.warmup": 0.1, "train.precision": "fp32", "log.trackers": "[]", "eval.at_start": "true",
        "eval.every": STEPS, "checkpoint.every": STEPS,
    }  # fmt: skip
    words = command("cpu", 1, "finetune/train.py", *(word for name, value in given.items() for word in (f"--{name}", value)))
    done = subprocess.run(words, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (event["val/accuracy"] for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "evaluation")
    folder = export(tmp_path / "run", tmp_path / "export", dtype="fp32")
    scored = tmp_path / "scored.jsonl"
    words = [sys.executable, "-m", "overtone", "generate", "--model", str(folder), "--rows", str(held_out), "--out", str(scored)]
    subprocess.run(words, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in scored.read_text().splitlines()]
    share = sum(row["chosen_reward"] > row["rejected_reward"] for row in rows) / len(rows)
    figures.append(f"llm_reward, LoRA, {STEPS} steps: {before:.0%} → {share:.0%} of {len(rows)} held-out pairs")
    assert share == pytest.approx(after, abs=1.5 / len(rows)) and share >= REACHED
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32),
        AutoTokenizer.from_pretrained(folder),
    )
    chats = [tokenizer.apply_chat_template([*row["prompt"], *row["chosen"]], tokenize=False) for row in rows[:8]]
    with torch.no_grad():
        rewards = model.eval()(**tokenizer(chats, add_special_tokens=False, padding=True, return_tensors="pt")).logits[:, 0]
    assert rewards.tolist() == pytest.approx([row["chosen_reward"] for row in rows[:8]], abs=1e-3)
