"""Some steps of supervised fine-tuning in one of several ways, timed. Run by sft_speed.py in the environment that has trl.

usage: _sft_contestant.py WAY FOLDER STEPS; FOLDER holds base/ and train.jsonl; prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from overtone.finetune.config import resolve
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group
from overtone.finetune.training import loop, setup
from overtone.finetune.training.step import make_loader, train_step
from overtone.recipes.language.chat_model_loading import ChatProcessor
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.llm_sft.recipe import RECIPE, read
from workshop.benchmarks.order import anonymous_kib

ROWS, POSITIONS = 8, 2048
"""Maximum rows of a padded batch, and positions of a packed one."""
WARM_UP = 2
"""Steps before the first that counts."""
RATE = 1e-4

Step = Callable[[], int]
"""One optimizer step; returns its tokens, without padding."""


def ours(folder: Path, packing: bool) -> Iterator[Step]:
    """finetune's own step, as it is launched on one process."""
    given = {
        "model.source": folder / "base", "data.train": folder / "train.jsonl", "run.dir": folder / f"run-{packing}",
        "data.packing": packing, "data.window": 512, "train.micro_tokens": POSITIONS, "train.global_batch_tokens": 1,
        "train.precision": "fp32", "train.lr": RATE, "train.steps": 10**6, "log.trackers": "[]",
    }  # fmt: skip
    config = resolve("llm_sft", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])
    joined = process_group.join((), folder)
    training, progress = setup.build(config, RECIPE, joined)
    loader = make_loader(training, training.rows)
    for number, (step, turns) in enumerate(loader.iterate(loop.steps_left(training, progress))):

        def act(turns: Any = turns, number: int = number, tokens: int = step.tokens) -> int:
            train_step(training, turns, number)
            return tokens

        yield act


def bare(folder: Path) -> Iterator[Step]:
    """Train with a loop as one would write it by hand: the stock model's own loss on batches padded to their longest, as many positions as
    ours."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for batch, tokens in padded_batches(folder):

        def act(batch: dict[str, Tensor] = batch, tokens: int = tokens) -> int:
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return tokens

        yield act


def padded_batches(folder: Path) -> Iterator[tuple[dict[str, Tensor], int]]:
    """The very micro-batches that ours trains on, with labels in place of targets."""
    samples = read_samples(folder)
    lengths = torch.tensor([len(sample["ids"]) for sample in samples]).numpy()
    order = batching.Order(0, 512, POSITIONS, 1)
    for step in batching.steps(order, lengths, batching.Place(), None):
        chosen = [samples[row] for micro in step.micros for row in micro.ids]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([sample["ids"] for sample in chosen], batch_first=True)
        labels = pad([sample["ids"].where(sample["supervised"], -100) for sample in chosen], batch_first=True, padding_value=-100)
        yield {"input_ids": ids, "labels": labels}, step.tokens


def read_samples(folder: Path) -> list[Any]:
    processor = ChatProcessor(load_tokenizer(folder / "base", None), RECIPE.Options())
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [read(json.loads(line), processor, folder) for line in lines]


def trl(folder: Path, packing: bool, steps: int) -> list[tuple[float, int]]:
    """Processor seconds and tokens of each step of TRL's SFTTrainer, reported by a callback."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.marks.append(time.process_time())

    counted: list[int] = []
    rows = [{"messages": json.loads(line)["messages"]} for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    settings = SFTConfig(
        output_dir=str(folder / f"trl-{packing}"), max_steps=steps + 1, per_device_train_batch_size=1 if packing else ROWS,
        packing=packing, max_length=POSITIONS, assistant_only_loss=True, learning_rate=RATE, lr_scheduler_type="constant",
        save_strategy="no", report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, logging_steps=10**6, disable_tqdm=True,
        seed=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    clock = Clock()
    trainer = SFTTrainer(
        model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=load_tokenizer(folder / "base", None),
        callbacks=[clock],
    )  # fmt: skip
    forward = model.forward

    def counting(*given: Any, **named: Any) -> Any:
        mask = named.get("attention_mask")
        counted.append(int(named["input_ids"].numel() if mask is None else mask.sum()))
        return forward(*given, **named)

    model.forward = counting
    trainer.train()
    return [(after - before, tokens) for before, after, tokens in zip(clock.marks, clock.marks[1:], counted, strict=False)]


def timed(steps: Iterator[Step], count: int) -> list[tuple[float, int]]:
    """Processor seconds and tokens of each step, the making of its batch included."""
    found = []
    for _ in range(count):
        began = time.process_time()
        tokens = next(steps)()
        found.append((time.process_time() - began, tokens))
    return found


def main() -> None:
    torch.set_num_threads(1)
    way, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    seen, done = [anonymous_kib()], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(anonymous_kib())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    if way.startswith("trl"):
        taken = trl(folder, way.endswith("packed"), count)
    else:
        taken = timed(bare(folder) if way == "bare" else ours(folder, way.endswith("packed")), count)
    done.set()
    counted = taken[WARM_UP:]
    seconds, tokens = sum(each for each, _ in counted), sum(each for _, each in counted)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "steps": len(counted), "peak": max(seen) * 1024}), flush=True)


if __name__ == "__main__":
    main()
