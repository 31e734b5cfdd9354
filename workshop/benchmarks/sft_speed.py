"""Tokens per second and memory of llm_sft, padded and packed, compared with TRL's SFTTrainer and a hand-written loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from overtone.finetune.storage import files
from workshop.benchmarks import _table

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-chat" / "bin" / "python"
WAYS = {
    "bare": "by hand, padded", "ours-padded": "llm_sft, padded", "ours-packed": "llm_sft, packed",
    "trl-padded": "TRL, padded", "trl-packed": "TRL, packed",
}  # fmt: skip
COLUMNS = ("way", "tokens a step", "tokens / s", "of by hand", "peak memory, MiB")
WORDS = 16384


def main() -> None:
    flags = _table.read_flags(__doc__)
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import trl"], check=False, capture_output=True).returncode:
        print(f"{_table.SKIPPED}needs trl in .venv-chat: `make .venv-chat/.installed` makes that environment")
        return
    count, rounds, rows, width = (4, 1, 64, 64) if flags.quick else (10, 3, 1000, 192)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), rows, width)
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                found[way].append(contest(way, Path(folder), count))
    by_hand = speed(found["bare"])
    lines = [
        [
            name,
            round(median(each["tokens"] / each["steps"] for each in found[way])),
            round(speed(found[way])),
            f"{speed(found[way]) / by_hand:.2f}",
            round(median(each["peak"] for each in found[way]) / 2**20),
        ]
        for way, name in WAYS.items()
    ]
    _table.publish("sft_speed", flags, COLUMNS, lines, note(count, rounds))


def note(count: int, rounds: int) -> str:
    return (
        f"A Qwen3 of {WORDS:,} words, fp32, one process, one thread; chats of log-normal length, tokens without padding, per second of "
        f"processor time over {count - 2} steps; median of {rounds} processes each, in turns. By hand: the stock model's own loss on the "
        "micro-batches of `llm_sft, padded`. llm_sft computes the samples of a packed row one by one (options.attention: varlen). TRL pads "
        "8 chats in random order; on a CPU its packed chats see each other, as it warns."
    )


def make(folder: Path, rows: int, width: int) -> None:
    """A model with the tiny tokenizer and a larger vocabulary than that has, and chats whose lengths spread as those of people do."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from overtone.recipes.llm_sft.model import tiny_checkpoint

    tiny_checkpoint.build(folder / "base")
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=WORDS, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=width // 4, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(shape).save_pretrained(folder / "base")
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(4.6, 0.8, rows), 8, 700).astype(int)
    files.write_jsonl(folder / "train.jsonl", ({"messages": chat(random, size)} for size in lengths))


def chat(random: Any, size: int) -> list[dict[str, str]]:
    text = "".join(map(chr, random.integers(97, 123, size)))
    return [{"role": "user", "content": text[: size // 2]}, {"role": "assistant", "content": text[size // 2 :]}]


def contest(way: str, folder: Path, count: int) -> dict[str, Any]:
    command = [PYTHON, ROOT / "workshop" / "benchmarks" / "_sft_contestant.py", way, folder, count]
    run = [str(word) for word in command]
    for left in folder.glob("run-*"):
        files.discard(left)
    done = subprocess.run(run, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def speed(taken: list[dict[str, Any]]) -> float:
    return median(each["tokens"] / each["seconds"] for each in taken)


if __name__ == "__main__":
    main()
