"""Fixed groups of answers with rewards and with log-probabilities of an older policy, as samples and as rows of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from overtone.finetune.recipe import Sample
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.policy.policy_objectives import count_targets, find_advantages, weigh_token

LONGEST = 9


@dataclass(frozen=True)
class FixedAnswer:
    """An answer of an older policy."""

    prompt: list[int]
    ids: list[int]
    scores: list[float]
    """Log-probability of each token by the older policy."""
    base: list[float]
    """That by the base."""
    reward: float


def make_groups(folder: Path, vocabulary: int = 40) -> list[list[FixedAnswer]]:
    """Two groups of three answers of different length. The older policy and the base are the model with noise, so that some ratios are
    beyond the bounds."""
    chance = torch.Generator().manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    def draw(count: int) -> list[int]:
        return torch.randint(3, vocabulary, (count,), generator=chance).tolist()

    groups = []
    for prompt, lengths, rewards in ((draw(4), (3, 7, 1), (1.0, 0.0, 0.5)), (draw(6), (9, 2, 5), (0.0, 2.0, 0.0))):
        group = []
        for length, reward in zip(lengths, rewards, strict=True):
            ids = draw(length)
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            scores = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            noise, other = (torch.randn(length, generator=chance, dtype=torch.float64) * 0.4 for _ in range(2))
            group.append(FixedAnswer(prompt, ids, (scores + noise).tolist(), (scores + other).tolist(), reward))
        groups.append(group)
    return groups


def make_samples(groups: list[list[FixedAnswer]], options: Options) -> list[Sample]:
    """The answers as samples of the recipe, in fp64."""
    samples = []
    for group in groups:
        advantages = find_advantages(options.objective, [answer.reward for answer in group])
        for answer, advantage in zip(group, advantages, strict=True):
            tokens, double = len(answer.ids), torch.float64
            samples.append(
                {
                    "ids": torch.tensor([*answer.prompt, *answer.ids]),
                    "supervised": torch.tensor([False] * len(answer.prompt) + [True] * tokens),
                    "rollout": torch.tensor(answer.scores, dtype=double),
                    "advantage": torch.tensor(advantage, dtype=double),
                    "weight": torch.tensor(weigh_token(options.objective, tokens, LONGEST), dtype=double),
                    "targets": torch.tensor(count_targets(options.objective, tokens)),
                    "metric/reward": torch.tensor(answer.reward, dtype=double),
                }
            )
    return samples


def load_model(folder: Path) -> CausalModel:
    """The model as the recipe trains it, in fp64."""
    return CausalModel(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=varlen_attention.LOOP))
