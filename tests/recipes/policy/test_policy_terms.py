"""The loss of a batch, and its gradients, against plain code, one answer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import REFERENCE, Batch
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import score_tokens
from overtone.recipes.llm_grpo.answer_samples import collate, pack
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.policy.policy_terms import attach_bounds, check_mismatch, compute_terms
from overtone.recipes.policy.rollout_samples import LOSS
from tests.recipes.llm_dpo.pairs_trained_plainly import normalize
from tests.recipes.llm_grpo.groups import LONGEST, FixedAnswer, load_model, make_groups, make_samples
from tests.recipes.llm_sft import tiny_runs

LossAndGradients = tuple[float, dict[str, Tensor]]
"""Loss of a step, and the gradient of each parameter by its name."""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    varlen_attention.register()
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", normalize)
    return tiny_runs.write_base(tmp_path / "base")


def score_plainly(model: Any, answer: FixedAnswer) -> Tensor:
    logits = model(torch.tensor([[*answer.prompt, *answer.ids]])).logits[0, len(answer.prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]


def compute_plainly(folder: Path, groups: list[list[FixedAnswer]], options: Options) -> LossAndGradients:
    """The step, written out token by token from the papers."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    answers, tokens = sum(map(len, groups)), sum(len(answer.ids) for group in groups for answer in group)
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        rewards = torch.tensor([answer.reward for answer in group], dtype=torch.float64)
        advantages = rewards - rewards.mean()
        if options.objective != "dr_grpo":
            advantages = advantages / rewards.std()
        for answer, advantage in zip(group, advantages.tolist(), strict=True):
            scores = score_plainly(model, answer)
            parts = []
            for score, old, base in zip(scores, answer.scores, answer.base, strict=True):
                ratio = torch.exp(score - old)
                bounded = torch.clamp(ratio, 1 - options.clip_low, 1 + options.upper_clip)
                kl = torch.exp(base - score) - (base - score) - 1
                parts.append(-torch.min(ratio * advantage, bounded * advantage) + options.kl_weight * kl)
            part = torch.stack(parts).sum()
            total = (
                total + {"grpo": part / len(parts) / answers, "dr_grpo": part / LONGEST / answers, "dapo": part / tokens}[options.objective]
            )
    total.backward()
    return float(total.detach()), read_gradients(model)


def read_gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradient of each parameter by its name in transformers."""
    return {name.removeprefix("causal."): each.grad for name, each in model.named_parameters() if each.grad is not None}


def compute_by_recipe(folder: Path, groups: list[list[FixedAnswer]], options: Options, cut: list[int], lay: Any) -> LossAndGradients:
    """The same by micro-batches of `cut` answers."""
    model = load_model(folder)
    attach_bounds(model, options)
    samples = make_samples(groups, options)
    answers, batches, start = [answer for group in groups for answer in group], list[Batch](), 0
    for count in cut:
        batch = lay(samples[start : start + count])
        if options.kl_weight:
            found = [score for answer in answers[start : start + count] for score in answer.base]
            batch.tensors[REFERENCE] = torch.tensor(found, dtype=torch.float64)
        batches.append(batch)
        start += count
    targets, total = sum(batch.targets[LOSS] for batch in batches), 0.0
    for batch in batches:
        loss = compute_terms(score_tokens, model, batch)[LOSS].sum / targets
        loss.backward()
        total += float(loss.detach())
    return total, read_gradients(model)


def compare(found: LossAndGradients, expected: LossAndGradients, within: float) -> None:
    """`within`: relative to the loss, and to the largest gradient of each parameter."""
    assert found[0] == pytest.approx(expected[0], rel=within)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in found[1].items():
        largest = float(expected[1][name].abs().max())
        assert largest > 0 and float((gradient - expected[1][name]).abs().max()) <= within * largest, name


CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo with kl": {"kl_weight": 0.04},
    "dr_grpo": {"objective": "dr_grpo"},
    "dapo": {"objective": "dapo"},
    "dapo with other bounds": {"objective": "dapo", "clip_low": 0.1, "clip_high": 0.5},
}


@pytest.mark.parametrize("given", CASES.values(), ids=[*CASES])
@pytest.mark.parametrize(("cut", "lay"), [([6], pack), ([1, 2, 3], pack), ([4, 2], collate)])
def test_loss_and_gradients_are_those_of_the_papers(base: Path, given: dict[str, Any], cut: list[int], lay: Any) -> None:
    groups, options = make_groups(base), Options(**given)
    compare(compute_by_recipe(base, groups, options, cut, lay), compute_plainly(base, groups, options), within=1e-9)


def test_some_ratios_are_clipped_and_the_mismatch_is_measured(base: Path) -> None:
    model, options = load_model(base), Options()
    attach_bounds(model, options)
    groups = make_groups(base)
    terms = compute_terms(score_tokens, model, pack(make_samples(groups, options)))
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    found = [(score_plainly(plain, answer).detach() - torch.tensor(answer.scores)).abs().sum() for group in groups for answer in group]
    assert float(terms["mismatch"].sum) == pytest.approx(float(sum(found)))
    assert 0 < float(terms["clipped"].sum) < 27 and terms["mismatch"].weight == terms["clipped"].weight == 0


def test_the_loss_of_an_evaluation_is_minus_the_reward_and_needs_no_forward() -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("a forward")

    sample = {"ids": torch.tensor([1, 2]), "supervised": torch.tensor([False, True]), "metric/reward": torch.tensor(0.75)}
    terms = compute_terms(refuse, torch.nn.Module(), collate([sample, sample]))
    assert float(terms[LOSS].sum) == -1.5 and float(terms["reward"].sum) == 1.5


@pytest.mark.parametrize("value", [0.2, float("nan")])
def test_a_mismatch_above_the_limit_is_an_error(value: float) -> None:
    check_mismatch({"mismatch": 0.1}, Options())
    with pytest.raises(UserError, match=r"differ by .* nats for a token on average, above options.max_mismatch: 0.1; the update was not"):
        check_mismatch({"mismatch": value}, Options())
