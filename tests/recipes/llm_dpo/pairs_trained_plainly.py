"""The same small preference run in two ways: by plain transformers, one side of a row at a time, and by llm_dpo in packed rows; in fp64."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from overtone.finetune.modeling import base_kl_loss
from overtone.recipes.language.chat_recipe import ChatProcessor
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.llm_dpo import recipe
from overtone.recipes.llm_dpo.options import REFERENCED, Options
from overtone.recipes.llm_dpo.recipe import LOSS, RECIPE
from tests.recipes.llm_sft import families

ROWS = [
    {
        "prompt": [{"role": "user", "content": question}],
        **{side: [{"role": "assistant", "content": text}] for side, text in answers.items()},
    }
    for question, answers in (
        ("Good day.", {"chosen": "And to you.", "rejected": "No."}),
        ("Who are you?", {"chosen": "I am.", "rejected": "I am a machine. I am a machine."}),
        ("Is it cold?", {"chosen": "It is cold.", "rejected": "It is warm."}),
        ("Yes or no?", {"chosen": "Yes.", "rejected": "Think before you answer."}),
    )
]
UPDATES, RATE = 20, 1e-3


def normalize(norm: Any, states: Tensor) -> Tensor:
    """The norm of Qwen3 in the type of its input; that of transformers rounds to fp32."""
    return norm.weight * (states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))  # type: ignore[no-any-return]


def processor_of(options: Options) -> ChatProcessor[Options]:
    return ChatProcessor(families.tokenizer("chatml"), options)


# ---- plain transformers, one side of a row at a time


def score_plainly(model: Any, row: dict[str, Any], side: str) -> tuple[Tensor, int]:
    """Σ log p of an answer's tokens, and their number: the prompt is what generation gets, the answer what follows."""
    tokenizer = families.tokenizer("chatml")
    start = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
    prompt, answer = tokenizer(start, add_special_tokens=False)["input_ids"], tokenizer(row[side][0]["content"] + "<|im_end|>")["input_ids"]
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return functional.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None]).sum(), len(answer)


def loss_plainly(model: Any, base: Any, row: dict[str, Any], options: Options) -> Tensor:
    (chosen, long), (rejected, short) = (score_plainly(model, row, side) for side in ("chosen", "rejected"))
    if options.objective in REFERENCED:
        with torch.no_grad():
            of_base = [score_plainly(base, row, side)[0] for side in ("chosen", "rejected")]
        chosen, rejected = chosen - of_base[0], rejected - of_base[1]
        if options.length_normalized:
            chosen, rejected = chosen / long, rejected / short
        gap, share = chosen - rejected, options.label_smoothing
        if options.objective == "ipo":
            return (gap - 1 / (2 * options.strength)) ** 2
        sigma = torch.sigmoid(options.strength * gap)
        return -(1 - share) * sigma.log() - share * (1 - sigma).log()
    one, other = chosen / long, rejected / short
    if options.objective == "simpo":
        return -torch.sigmoid(options.strength * (one - other) - options.margin).log()
    odds = [mean.exp() / (1 - mean.exp()) for mean in (one, other)]
    return -one - options.strength * torch.sigmoid((odds[0] / odds[1]).log()).log()


def train_plainly(folder: Path, options: Options, updates: int) -> Iterator[tuple[float, float]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for _ in range(updates):
        loss = torch.stack([loss_plainly(model, base, row, options) for row in ROWS]).mean()
        optimizer.zero_grad()
        loss.backward()
        yield float(loss.detach()), take_norm(model)
        optimizer.step()


def take_norm(model: Any) -> float:
    return float(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm())


# ---- the recipe, in packed micro-batches of two and of one row


def train_by_recipe(folder: Path, options: Options, updates: int, rows: Sequence[dict[str, Any]] = ROWS) -> Iterator[tuple[float, float]]:
    def load() -> CausalModel:
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=varlen_attention.LOOP)
        return CausalModel(whole)

    model, base = load(), load().eval()
    strengths = recipe.Strengths(options.strength, options.margin, options.label_smoothing, options.length_normalized)
    model.__dict__["objective"] = recipe.ObjectiveChoice(options.objective, strengths)
    own = base_kl_loss.add_reference(RECIPE, base) if options.objective in REFERENCED else RECIPE
    samples = [RECIPE.read(row, processor_of(options), Path()) for row in rows]
    assert own.pack is not None
    batches = [own.pack(samples[:2]), own.pack(samples[2:3]), own.pack(samples[3:])]
    pairs = sum(batch.targets[LOSS] for batch in batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for _ in range(updates):
        optimizer.zero_grad()
        losses = [own.loss(model, batch)[LOSS].sum / pairs for batch in batches]
        torch.stack(losses).sum().backward()
        yield float(torch.stack(losses).detach().sum()), take_norm(model)
        optimizer.step()


def largest_difference(folder: Path, options: Options, updates: int) -> float:
    """The largest relative difference of losses and gradient norms."""
    both = zip(train_plainly(folder, options, updates), train_by_recipe(folder, options, updates), strict=True)
    return max(abs(found / expected - 1) for plain, own in both for expected, found in zip(plain, own, strict=True))
