"""llm_grpo against TRL's `GRPOTrainer`, which the environment of chats contains, on fixed rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.llm_grpo.answer_samples import pack
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.llm_grpo.policy_objectives import find_advantages
from tests.recipes.llm_dpo.pairs_trained_plainly import normalize
from tests.recipes.llm_grpo.groups import LONGEST, FixedAnswer, make_groups
from tests.recipes.llm_grpo.test_policy_terms import compute_by_recipe
from tests.recipes.llm_sft import families, tiny_runs


def compute_by_trl(folder: Path, groups: list[list[FixedAnswer]], options: Options) -> tuple[float, float]:
    """Loss and gradient norm of TRL's trainer, whose model is in fp64."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset  # comes with TRL

    answers = [answer for group in groups for answer in group]
    settings = trl.GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=len(answers), num_generations=3, loss_type=options.objective,
        epsilon=options.clip_low, epsilon_high=options.upper_clip, beta=0.0, max_completion_length=LONGEST, report_to=[], use_cpu=True,
        bf16=False, gradient_checkpointing=False, temperature=1.0, disable_dropout=True,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=families.tokenizer("chatml"),
    )
    trainer.current_gradient_accumulation_steps = 1

    def pad(rows: list[list[Any]], side: str) -> torch.Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_side=side)

    ids = [answer.ids for answer in answers]
    advantages = [value for group in groups for value in find_advantages(options.objective, [answer.reward for answer in group])]
    inputs = {
        "prompt_ids": pad([answer.prompt for answer in answers], "left"),
        "prompt_mask": pad([[1] * len(answer.prompt) for answer in answers], "left"),
        "completion_ids": pad(ids, "right"),
        "completion_mask": pad([[1] * len(one) for one in ids], "right"),
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "old_per_token_logps": pad([answer.scores for answer in answers], "right").double(),
        "num_items_in_batch": torch.tensor(sum(map(len, ids))),
    }
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    norm = torch.cat([each.grad.flatten() for each in trainer.model.parameters() if each.grad is not None]).norm()
    return float(loss.detach()), float(norm)


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "dapo"])
def test_loss_and_gradients_are_those_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str) -> None:
    """TRL computes the loss in fp32 also for a model in fp64."""
    varlen_attention.register()
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", normalize)
    base = tiny_runs.write_base(tmp_path / "base")
    groups, options = make_groups(base), Options(objective=objective)  # type: ignore[arg-type]
    ours = compute_by_recipe(base, groups, options, [6], pack)
    assert ours == pytest.approx(compute_by_trl(base, groups, options), rel=1e-5)
