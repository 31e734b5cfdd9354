"""Train one setting of sft_defaults.py, export it and judge it. Run in the environment that has trl.

usage: _sft_run.py BASE FOLDER SETTING; SETTING is a `Setting` as JSON; FOLDER is new; prints one line of JSON with a `Result`
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import overtone
from tests.real.person_extraction import write_rows
from workshop.benchmarks._sft_settings import LORA, OURS, UNSLOTH, UNTRAINED, Result, Setting
from workshop.benchmarks._sft_tasks import TASKS, Task, score_model


def train(base: Path, folder: Path, task: Task, setting: Setting) -> tuple[Path, float, float, int]:
    """Returns the folder of the run or of the export, learning rate, epochs and steps."""
    if setting.trainer == UNTRAINED:
        return base, 0.0, 0, 0
    return (train_here if setting.trainer == OURS else train_with_trl)(base, folder, task, setting)


def train_here(base: Path, folder: Path, task: Task, setting: Setting) -> tuple[Path, float, float, int]:
    """Train with llm_sft; returns as `train`, with the folder of the run."""
    examples = task.rows[: setting.rows]
    given: dict[str, object] = {
        "model.source": base, "data.train": write_rows(folder / "train.jsonl", examples), "run.dir": folder / "run",
        "log.trackers": [], "checkpoint.every": 10**6, "train.lr": setting.lr, "train.epochs": setting.epochs,
        "run.seed": setting.seed,
    }  # fmt: skip
    if setting.way == LORA:
        given["model.lora"] = True
    if setting.batch is not None:
        size = setting.batch * count_positions(base, examples) // len(examples)
        given |= {"train.micro_tokens": size, "train.global_batch_tokens": size}  # each step is one full micro-batch
    run = overtone.train("llm_sft", given)
    assert run.state == "finished" and run.total is not None
    assert setting.lr is not None and setting.epochs is not None
    return run.folder, setting.lr, setting.epochs, run.total


def count_positions(base: Path, examples: list[Any]) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    return sum(len(tokenizer.apply_chat_template(one.as_row()["messages"], return_dict=True)["input_ids"]) for one in examples)


def train_with_trl(base: Path, folder: Path, task: Task, setting: Setting) -> tuple[Path, float, float, int]:
    """Train with TRL's SFTTrainer, and what it or unsloth has as defaults; returns as `train`, with the folder of the
    merged model.

    TRL: the defaults of SFTConfig, and for LoRA those of its ModelConfig with the learning rate of its documented command. unsloth: the
    settings of its notebooks. 8-bit AdamW is AdamW here, and activations are not recomputed, which changes the seconds alone.
    """
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    common: dict[str, Any] = {
        "output_dir": str(folder / "run"), "use_cpu": True, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
        "gradient_checkpointing": False, "logging_steps": 10**6,
    }  # fmt: skip
    adapters = None
    if setting.trainer == UNSLOTH:
        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        adapters = LoraConfig(r=16, lora_alpha=16, lora_dropout=0.0, target_modules=linear, task_type="CAUSAL_LM")
        config = SFTConfig(
            **common, per_device_train_batch_size=2, gradient_accumulation_steps=4, warmup_steps=5, max_steps=60, learning_rate=2e-4,
            weight_decay=0.001, lr_scheduler_type="linear", seed=3407,
        )  # fmt: skip
    elif setting.way == LORA:
        adapters = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM")
        config = SFTConfig(**common, learning_rate=2e-4)
    else:
        config = SFTConfig(**common)
    rows = [row.as_row()["messages"] for row in task.rows[: setting.rows]]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": row[:1], "completion": row[1:]} for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=adapters,
    )
    trainer.train()
    model: Any = trainer.model if adapters is None else trainer.model.merge_and_unload()
    model.save_pretrained(folder / "export")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "export")
    return folder / "export", config.learning_rate, round(trainer.state.epoch, 1), trainer.state.global_step


def main() -> None:
    torch.set_num_threads(1)
    base, folder, setting = Path(sys.argv[1]), Path(sys.argv[2]), Setting(**json.loads(sys.argv[3]))
    import transformers  # noqa: F401  # what the imports take is not a part of training

    task, began = TASKS[setting.task](), time.process_time()
    trained, lr, epochs, steps = train(base, folder, task, setting)
    seconds = round(time.process_time() - began, 1)
    if setting.trainer == OURS:
        trained = overtone.export(trained, folder / "export", dtype="fp32")
    right, known = score_model(task, trained)
    print(json.dumps(asdict(Result(lr, epochs, steps, seconds, right, known))), flush=True)


if __name__ == "__main__":
    main()
