"""The same small preference run in two ways: by plain transformers and peft, one answer at a time, and by llm_dpo in micro-batches; in
fp64."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peft
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from overtone.finetune.config import Lora
from overtone.finetune.data.batching import Loader, MicroBatch
from overtone.finetune.data.cached_samples import COLUMNS, Rows
from overtone.finetune.data.sample_serialization import encode
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.modeling import base_kl_loss, lora_adapters
from overtone.finetune.recipe import Sample
from overtone.finetune.training.step import add_divergence, estimate_divergence
from overtone.recipes.language.chat_model_loading import ChatProcessor
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.llm_dpo.options import Options
from overtone.recipes.llm_dpo.recipe import RECIPE
from overtone.recipes.preferences.batch_targets import LOSS
from overtone.recipes.preferences.preference_options import REFERENCED
from overtone.recipes.preferences.preference_terms import attach_objective
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
LABELLED = [
    {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
    for row, side in zip(ROWS, ("chosen", "rejected", "rejected", "chosen"), strict=True)
]
UPDATES, RATE = 20, 1e-3
RANK, ALPHA = 4, 8


def normalize(norm: Any, states: Tensor) -> Tensor:
    """The norm of Qwen3 in the type of its input; that of transformers rounds to fp32."""
    return norm.weight * (states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))  # type: ignore[no-any-return]


def processor_of(options: Options) -> ChatProcessor[Options]:
    return ChatProcessor(families.tokenizer("chatml"), options)


def initialize_adapters(model: Any) -> None:
    """Give the adapters values that depend on their place only, so that the model differs from its base from the beginning."""
    found = [name for name, _ in model.named_parameters() if ".lora_" in name]
    for number, name in enumerate(sorted(found)):
        place, _, own = name.rpartition(".")
        shape, owner = model.get_parameter(name).shape, model.get_submodule(place)
        values = torch.randn(shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64) / 10
        owner.register_parameter(own, torch.nn.Parameter(values))


# ---- plain transformers, one answer at a time


def score_plainly(model: Any, prompt: list[dict[str, Any]], answer: list[dict[str, Any]]) -> tuple[Tensor, int]:
    """Σ log p of an answer's tokens, and their number: the prompt is what generation gets, the answer what follows."""
    tokenizer = families.tokenizer("chatml")
    start = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    before, after = tokenizer(start, add_special_tokens=False)["input_ids"], tokenizer(answer[0]["content"] + "<|im_end|>")["input_ids"]
    logits = model(torch.tensor([[*before, *after]])).logits[0, len(before) - 1 : -1]
    return functional.log_softmax(logits, -1).gather(1, torch.tensor(after)[:, None]).sum(), len(after)


@torch.no_grad()
def score_with_base(model: Any, base: Any, prompt: list[dict[str, Any]], answer: list[dict[str, Any]]) -> Tensor:
    """The same by the base: a copy, or, without one, the model with its adapters disabled."""
    if base is not None:
        return score_plainly(base, prompt, answer)[0]
    with model.disable_adapter():
        return score_plainly(model, prompt, answer)[0]


def pair_loss(model: Any, base: Any, row: dict[str, Any], options: Options) -> Tensor:
    (chosen, long), (rejected, short) = (score_plainly(model, row["prompt"], row[side]) for side in ("chosen", "rejected"))
    if options.objective in REFERENCED:
        of_base = [score_with_base(model, base, row["prompt"], row[side]) for side in ("chosen", "rejected")]
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


def compute_losses(model: Any, base: Any, options: Options) -> list[Tensor]:
    if options.objective != "kto":
        return [pair_loss(model, base, row, options) for row in ROWS]

    def log_ratio(prompt: Any, answer: Any) -> Tensor:
        return score_plainly(model, prompt, answer)[0] - score_with_base(model, base, prompt, answer)

    with torch.no_grad():  # the answer of the row before, and of the last one for the first
        mismatched = [log_ratio(row["prompt"], LABELLED[number - 1]["completion"]) for number, row in enumerate(LABELLED)]
    point = max(0.0, float(torch.stack(mismatched).mean()))
    losses = []
    for row in LABELLED:
        distance = options.strength * (log_ratio(row["prompt"], row["completion"]) - point)
        value = torch.sigmoid(distance) if row["label"] else torch.sigmoid(-distance)
        losses.append((options.desirable_weight if row["label"] else options.undesirable_weight) * (1 - value))
    return losses


def train_plainly(folder: Path, options: Options, updates: int, lora: bool = False) -> Iterator[tuple[float, float]]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    base = None if lora else copy.deepcopy(model)
    if lora:
        model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
        initialize_adapters(model)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE, weight_decay=0.0)
    for _ in range(updates):
        loss = torch.stack(compute_losses(model, base, options)).mean()
        optimizer.zero_grad()
        loss.backward()
        yield float(loss.detach()), take_norm(model)
        optimizer.step()


def take_norm(model: Any) -> float:
    return float(torch.cat([each.grad.flatten() for each in model.parameters() if each.requires_grad]).norm())


# ---- the recipe, in micro-batches of two and of one row


class MemoryRows(Rows):
    """Samples as the loader takes them, without files."""

    def __init__(self, samples: list[Sample]) -> None:
        columns = np.zeros((len(samples), COLUMNS), np.int64)
        columns[:, 2] = [len(sample["ids"]) for sample in samples]
        super().__init__(Path("rows.jsonl"), columns, "", None)  # type: ignore[arg-type]
        self.__dict__["kept"] = [encode(sample) for sample in samples]

    def announce(self, rows: Any) -> None:
        pass

    def sample(self, row: int) -> bytearray:
        return bytearray(self.__dict__["kept"][row])


def load_model(folder: Path, lora: bool) -> CausalModel:
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=varlen_attention.LOOP)
    model = CausalModel(whole)
    if lora:
        model.requires_grad_(False)
        lora_adapters.inject_adapters(model, Lora(rank=RANK, alpha=ALPHA), "all-linear")
        initialize_adapters(model)
    return model


def train_by_recipe(
    folder: Path,
    options: Options,
    updates: int,
    rows: Sequence[dict[str, Any]] | None = None,
    lora: bool = False,
    packing: bool = True,
    cut: Sequence[tuple[int, ...]] = ((0, 1), (2,), (3,)),
) -> Iterator[tuple[float, float]]:
    """`cut`: numbers of the rows of each micro-batch."""
    given = rows or (LABELLED if options.objective == "kto" else ROWS)
    model, base = load_model(folder, lora), None if lora else load_model(folder, False).eval()
    attach_objective(model, options, options.desirable_weight, options.undesirable_weight)
    own = base_kl_loss.add_reference(RECIPE, base) if options.objective in REFERENCED else RECIPE
    own = base_kl_loss.choose_divergence(options, own)
    loader = Loader(MemoryRows([RECIPE.read(row, processor_of(options), Path()) for row in given]), own, 0, 1)
    turns = loader.turns(tuple(MicroBatch(ids, 1, 0, packing) for ids in cut))
    loader.close()
    answers = sum(turn.batch.targets[LOSS] for turn in turns)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE, weight_decay=0.0)
    world = join((), folder)
    training: Any = SimpleNamespace(recipe=own, model=model, base=base, world=world)
    for _ in range(updates):
        optimizer.zero_grad()
        ready = add_divergence(training, turns, estimate_divergence(training, [turns]))
        losses = [own.loss(model, turn.batch)[LOSS].sum / answers for turn in ready]
        torch.stack(losses).sum().backward()
        yield float(torch.stack(losses).detach().sum()), take_norm(model)
        optimizer.step()
    leave()


def largest_difference(folder: Path, options: Options, updates: int, lora: bool = False, **layout: Any) -> float:
    """The largest relative difference of losses and gradient norms."""
    both = zip(train_plainly(folder, options, updates, lora), train_by_recipe(folder, options, updates, lora=lora, **layout), strict=True)
    return max(abs(found / expected - 1) for plain, own in both for expected, found in zip(plain, own, strict=True))
