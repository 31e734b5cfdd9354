"""llm_dpo against TRL's `DPOTrainer` and `KTOTrainer`, which the environment of chats contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.preferences.preference_tokenization import tokenize_pair
from overtone.recipes.llm_dpo.options import Options
from tests.recipes.llm_dpo import pairs_trained_plainly as plain
from tests.recipes.llm_sft import families, tiny_runs

TEXTS = [
    {"prompt": f"{row['prompt'][0]['content']}\n", "chosen": row["chosen"][0]["content"], "rejected": row["rejected"][0]["content"]}
    for row in plain.ROWS
]
"""The line break is a token of its own: TRL would score one that the end of the prompt and the beginning of the answer form."""


LABELLED = [
    {"prompt": row["prompt"], "completion": row["chosen" if label else "rejected"], "label": label}
    for row, label in zip(TEXTS, (True, True, False, True), strict=True)
]


def train_by_trl(folder: Path, kind: str, rows: list[dict[str, Any]], beta: float) -> tuple[Any, list[tuple[float, float]]]:
    """The trainer, and loss and gradient norm of each update in fp64, which it logs in fp32. The whole data is one batch."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset  # comes with TRL

    settings = getattr(trl, f"{kind}Config")(
        output_dir=str(folder / "trl"), max_steps=plain.UPDATES, per_device_train_batch_size=len(rows), learning_rate=plain.RATE,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1e9, beta=beta, logging_steps=1, report_to=[],
        use_cpu=True, bf16=False, gradient_checkpointing=False, disable_dropout=True, save_strategy="no", seed=0,
        **({"train_sampling_strategy": "sequential"} if kind == "KTO" else {}),
    )  # fmt: skip
    model, reference = (AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float64) for _ in range(2))
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model,
        ref_model=reference,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=families.tokenizer("chatml"),
    )
    trainer.train()
    logged = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert len(logged) == plain.UPDATES and logged[-1][0] < 0.98 * logged[0][0]
    return trainer, logged


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    varlen_attention.register()
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", plain.normalize)
    return tiny_runs.write_base(tmp_path / "base")


def test_training_is_that_of_trl(tmp_path: Path, base: Path) -> None:
    options, tokenizer = Options(), families.tokenizer("chatml")
    trainer, theirs = train_by_trl(tmp_path, "DPO", TEXTS, options.strength)
    for row, given in zip(trainer.train_dataset, TEXTS, strict=True):
        (chosen, _), (rejected, _) = tokenize_pair(given, tokenizer, ())
        assert [row["prompt_ids"] + row["chosen_ids"], row["prompt_ids"] + row["rejected_ids"]] == [chosen, rejected]
    ours = list(plain.train_by_recipe(base, options, plain.UPDATES, TEXTS))
    for expected, found in zip(theirs, ours, strict=True):
        assert found == pytest.approx(expected, rel=1e-6)


def test_kto_is_that_of_trl(tmp_path: Path, base: Path) -> None:
    """TRL's mismatched answers are those of the row before in its batch, which here is the data."""
    options = Options(objective="kto")
    trainer, theirs = train_by_trl(tmp_path, "KTO", LABELLED, options.strength)
    assert max(entry.get("kl", 0) for entry in trainer.state.log_history) > 0.1, "the estimate of the divergence must count"
    ours = list(plain.train_by_recipe(base, options, plain.UPDATES, LABELLED))
    for expected, found in zip(theirs, ours, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)  # its log-probabilities are in fp32 also in a model of fp64
