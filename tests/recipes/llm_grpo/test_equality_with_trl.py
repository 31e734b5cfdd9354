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
from overtone.recipes.policy.policy_objectives import find_advantages
from overtone.recipes.policy.policy_options import ObjectiveName
from tests.recipes.llm_dpo.pairs_trained_plainly import normalize
from tests.recipes.llm_grpo.groups import LONGEST, FixedAnswer, make_groups
from tests.recipes.llm_sft import families, tiny_runs
from tests.recipes.policy.test_policy_terms import LossAndGradients, compare, compute_by_recipe, read_gradients


def compute_by_trl(folder: Path, groups: list[list[FixedAnswer]], options: Options) -> LossAndGradients:
    """The step of TRL's trainer, whose model is in fp64."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset  # comes with TRL

    answers = [answer for group in groups for answer in group]
    settings = trl.GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=len(answers), num_generations=3, loss_type=options.objective,
        epsilon=options.clip_low, epsilon_high=options.upper_clip, beta=options.kl_weight, max_completion_length=LONGEST,
        report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, temperature=1.0, disable_dropout=True,
        use_bias_correction_kl=False,
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
    if options.kl_weight:
        inputs["ref_per_token_logps"] = pad([answer.base for answer in answers], "right").double()
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return float(loss.detach()), read_gradients(trainer.model)


@pytest.mark.parametrize(("objective", "kl_weight"), [("grpo", 0.0), ("grpo", 0.04), ("dr_grpo", 1.0), ("dapo", 0.04)])
def test_loss_and_gradients_are_those_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: ObjectiveName, kl_weight: float
) -> None:
    """TRL computes the loss in fp32 also for a model in fp64. Its default multiplies the KL divergence by the importance ratio, as in
    DeepSeek-V3.2; `use_bias_correction_kl=False` is the equation of GRPO."""
    varlen_attention.register()
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", normalize)
    base = tiny_runs.write_base(tmp_path / "base")
    groups, options = make_groups(base), Options(objective=objective, kl_weight=kl_weight)
    ours = compute_by_recipe(base, groups, options, [6], pack)
    compare(ours, compute_by_trl(base, groups, options), within=1e-5)
