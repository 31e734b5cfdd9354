"""llm_reward against TRL's `RewardTrainer`, which the environment of chats contains: 20 updates in fp64, all weights and LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.qwen3 import modeling_qwen3

from overtone.finetune.config import Lora
from overtone.finetune.modeling import lora_adapters
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.llm_reward import sequence_losses
from overtone.recipes.llm_reward.model.modeling import HEAD, SequenceScorer
from overtone.recipes.llm_reward.options import Options
from overtone.recipes.llm_reward.recipe import RECIPE
from tests.recipes.llm_dpo import pairs_trained_plainly as plain
from tests.recipes.llm_reward.tiny_scorers import processor_of
from tests.recipes.llm_sft import families, tiny_runs

pytestmark = pytest.mark.slow
UPDATES, RATE, CENTERING = 20, 1e-3, 0.01
ROWS = [{**row, "margin": margin} for row, margin in zip(plain.ROWS, (0.0, 0.5, 0.25, 1.0), strict=True)]
LORA = Lora(rank=4, alpha=8.0)


def make_trainer(folder: Path, model: Any, peft_config: Any) -> tuple[Any, list[float]]:
    """TRL's trainer before its first step, and the list of the losses of its steps in fp64, which it logs in fp32."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset  # comes with TRL

    settings = trl.RewardConfig(
        output_dir=str(folder), max_steps=UPDATES, per_device_train_batch_size=len(ROWS), learning_rate=RATE, lr_scheduler_type="constant",
        weight_decay=0.0, max_grad_norm=1e9, center_rewards_coefficient=CENTERING, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_dropout=True, save_strategy="no", seed=0,
    )  # fmt: skip
    rows, losses = Dataset.from_list(ROWS), list[float]()
    trainer = trl.RewardTrainer(
        model=model, args=settings, train_dataset=rows, processing_class=families.tokenizer("chatml"), peft_config=peft_config
    )
    right = trainer.compute_loss

    def compute_loss(*given: Any, num_items_in_batch: Any = None) -> Any:
        loss = right(*given, num_items_in_batch=num_items_in_batch)
        losses.append(float(loss.detach()))
        return loss

    trainer.compute_loss = compute_loss
    return trainer, losses


@pytest.mark.parametrize(("adapted", "packed"), [(False, True), (True, False)])
def test_training_is_that_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapted: bool, packed: bool) -> None:
    pytest.importorskip("trl")
    from peft import LoraConfig

    varlen_attention.register()
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", plain.normalize)
    base = tiny_runs.write_base(tmp_path / "base")
    theirs = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float64)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", modules_to_save=["score"], task_type="SEQ_CLS")
    trainer, losses = make_trainer(tmp_path / "trl", theirs, adapters if adapted else None)
    ours = build_ours(base, {name: value.detach().clone() for name, value in trainer.model.named_parameters()}, adapted)
    own = list(train_ours(ours, packed))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "margin" in entry]
    expected = [[entry[name] for name in ("loss", "accuracy", "margin", "grad_norm")] for entry in logged]
    assert len(expected) == UPDATES and expected[-1][0] < 0.9 * expected[0][0]
    assert [found[0] for found in own] == pytest.approx(losses, rel=1e-9)
    for found, theirs_step in zip(own, expected, strict=True):
        assert found == pytest.approx(theirs_step, rel=1e-6), "logged in fp32"


def build_ours(base: Path, values: dict[str, torch.Tensor], adapted: bool) -> SequenceScorer:
    """The recipe's model with the parameters of TRL's, adapters included."""
    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation=varlen_attention.LOOP)
    model = SequenceScorer(CausalModel(whole), 1, CENTERING)
    if adapted:
        lora_adapters.inject_adapters(model, LORA, RECIPE.lora_targets, {HEAD})
    plain_names = {name.removeprefix("base_model.model.").replace("modules_to_save.default.", ""): value for name, value in values.items()}
    own = dict(model.named_parameters())
    model.load_state_dict({name: plain_names[name] for name in own}, strict=True, assign=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not adapted or name.startswith(HEAD) or lora_adapters.is_adapter(name))
    return model


def train_ours(model: SequenceScorer, packed: bool) -> Any:
    processor = processor_of(Options(centering=CENTERING))
    samples = [RECIPE.read(row, processor, Path()) for row in ROWS]
    make_batch = sequence_losses.pack if packed else sequence_losses.collate
    batches = [make_batch(samples[:2]), make_batch(samples[2:3]), make_batch(samples[3:])]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        terms = [RECIPE.loss(model, batch) for batch in batches]
        means = {name: sum(each[name].sum for each in terms) / len(ROWS) for name in terms[0]}
        loss = means["preference"] + CENTERING * means["centering"]
        loss.backward()
        norm = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None]).norm()
        yield [float(value.detach()) for value in (loss, means["accuracy"], means["margin"], norm)]
        optimizer.step()
