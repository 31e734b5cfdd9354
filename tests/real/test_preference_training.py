"""Released weights learn a checkable preference from 300 pairs, and what they know is counted before and after.

The judge (`preference_pairs.is_preferred`), the held-out pairs, the settings and the bounds below were committed before the first run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from overtone.finetune.exporting.export import export
from overtone.finetune.monitoring.run_records import read_log
from tests.launch.launching import ALONE, ROOT, command
from tests.real.person_extraction import QUESTIONS, answer
from tests.real.preference_pairs import HELD_OUT, is_preferred, make_pairs, write_pairs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
STEPS = 12
SETTINGS = {
    "model.lora": "true", "train.precision": "fp32", "train.lr": 2e-4, "train.warmup": 0.1, "train.steps": STEPS,
    "train.micro_tokens": 1024, "train.global_batch_tokens": 3072, "eval.every": STEPS, "eval.at_start": "true", "log.trackers": "[]",
}  # fmt: skip
ACCURACY, KNOWN = 0.9, 20
"""Least share of held-out pairs that are ranked right after training, and general questions of 30 still answered."""


def test_a_preference_is_learned_and_what_is_known_stays(chat_model: Path, tmp_path: Path, figures: list[str]) -> None:
    write_pairs(tmp_path)
    given = {"recipe": "llm_dpo", "model.source": chat_model, "run.dir": tmp_path / "run", **SETTINGS}
    given |= {"data.train": tmp_path / "train.jsonl", "data.val": tmp_path / "val.jsonl"}
    words = command("cpu", 1, "finetune/train.py", *(word for name, value in given.items() for word in (f"--{name}", value)))
    done = subprocess.run(words, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "evaluation"][-1]
    questions = [pair["prompt"][0]["content"] for pair in make_pairs(HELD_OUT, 60, 41)[:20]]
    counts = []
    for folder in (chat_model, export(tmp_path / "run", tmp_path / "export", dtype="fp32")):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        preferred = sum(map(is_preferred, answer(model, folder, questions, 24)))
        known = answer(model, folder, [question for question, _ in QUESTIONS], 24)
        right = sum(word.lower() in found.lower() for found, (_, word) in zip(known, QUESTIONS, strict=True))
        counts.append((preferred, right))
    figures.append(
        f"llm_dpo, {STEPS} steps: {last['val/accuracy']:.0%} of 60 held-out pairs ranked right, answers in the preferred form "
        f"{counts[0][0]} → {counts[1][0]} of 20, {counts[0][1]} → {counts[1][1]} of 30 general questions answered, kl {last['val/kl']:.3f}"
    )
    assert last["val/accuracy"] >= ACCURACY and counts[1][1] >= KNOWN
