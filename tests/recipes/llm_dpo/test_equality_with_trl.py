"""llm_dpo against TRL's `DPOTrainer`, which the environment of chats contains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.preferences.preference_rows import tokenize_pair
from overtone.recipes.llm_dpo.options import Options
from tests.recipes.llm_dpo import pairs_trained_plainly as plain
from tests.recipes.llm_sft import families, tiny_runs

TEXTS = [
    {"prompt": f"{row['prompt'][0]['content']}\n", "chosen": row["chosen"][0]["content"], "rejected": row["rejected"][0]["content"]}
    for row in plain.ROWS
]
"""The line break is a token of its own: TRL would score one that the end of the prompt and the beginning of the answer form."""


def test_training_is_that_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradient norm of each update in fp64. TRL logs both in fp32."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset  # comes with TRL

    varlen_attention.register()
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", plain.normalize)
    base, options, tokenizer = tiny_runs.write_base(tmp_path / "base"), Options(), families.tokenizer("chatml")
    settings = trl.DPOConfig(
        output_dir=str(tmp_path / "trl"), max_steps=plain.UPDATES, per_device_train_batch_size=len(TEXTS), learning_rate=plain.RATE,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1e9, beta=options.strength, logging_steps=1, report_to=[],
        use_cpu=True, bf16=False, gradient_checkpointing=False, disable_dropout=True, save_strategy="no", seed=0,
    )  # fmt: skip
    model, reference = (AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64) for _ in range(2))
    rows = Dataset.from_list(TEXTS)
    trainer = trl.DPOTrainer(model=model, ref_model=reference, args=settings, train_dataset=rows, processing_class=tokenizer)
    for row, given in zip(trainer.train_dataset, TEXTS, strict=True):
        (chosen, _), (rejected, _) = tokenize_pair(given, tokenizer, ())
        assert [row["prompt_ids"] + row["chosen_ids"], row["prompt_ids"] + row["rejected_ids"]] == [chosen, rejected]
    trainer.train()
    theirs = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "rewards/margins" in entry]
    ours = list(plain.train_by_recipe(base, options, plain.UPDATES, TEXTS))
    assert len(theirs) == plain.UPDATES and theirs[-1][0] < 0.9 * theirs[0][0]
    for expected, found in zip(theirs, ours, strict=True):
        assert found == pytest.approx(expected, rel=1e-6)
