"""Optimizers (AdamW, 8-bit AdamW, Muon) over this rank's shards, their state for checkpoints, and the learning-rate schedule.

AdamW is torch's own. finetune/modeling/adamw_8bit.py and finetune/modeling/muon.py update some parameter groups, and AdamW the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from overtone.finetune.config import Model, Parallel, Train
from overtone.finetune.distributed.sharding import local_shard, plain_name, shard_like
from overtone.finetune.distributed.tensor_parallel import blocks_of
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import adamw_8bit, muon
from overtone.finetune.modeling.adamw_8bit import AdamW8bit
from overtone.finetune.modeling.muon import Muon

Rule = Literal["adamw", "adamw_8bit", "muon"]
"""Update rule of a parameter."""


def check(train: Train, model: Model, parallel: Parallel) -> None:
    """Raises `UserError` if the optimizer cannot be combined with the rest of the config."""
    adamw_8bit.check(train.optimizer)
    muon.check(train, model, parallel)


def make_optimizer(model: nn.Module, train: Train, blocks: tuple[type[nn.Module], ...] = ()) -> torch.optim.AdamW:
    """Return the optimizer `train.optimizer` over the trained parameters; only matrices have weight decay (Loshchilov & Hutter 2019). Call
    it after sharding. `blocks`: classes whose matrices Muon updates. Raises the errors of `check_rules`.

    It works on this rank's shards as plain tensors: AdamW needs no communication, and the Python overhead of DTensor operations exceeds
    their time on a GPU. A group's `of` are the model's parameters, in the order of its `params`, which `update_parameters` fills.
    """
    rules = assign_rules(model, train.optimizer, blocks)
    if train.optimizer != "adamw":
        check_rules(model, train.optimizer, rules)
    embeddings = find_embeddings(model)
    decays = [parameter for parameter in rules if parameter.dim() > 1 and id(parameter) not in embeddings]
    chosen = {id(parameter) for parameter in decays}
    shares: tuple[tuple[Rule, list[nn.Parameter], float], ...] = (
        *((rule, [each for each in decays if rules[each] == rule], train.weight_decay) for rule in ("adamw_8bit", "muon", "adamw")),
        ("adamw", [parameter for parameter in rules if id(parameter) not in chosen], 0.0),
    )
    groups = [
        {
            "params": [nn.Parameter(local_shard(parameter).new_empty(0)) for parameter in parameters],
            "of": parameters,
            "weight_decay": decay,
            "rule": rule,
        }
        for rule, parameters, decay in shares
        if parameters
    ]
    betas = train.beta1, train.beta2
    match train.optimizer:
        case "adamw_8bit":
            return AdamW8bit(groups, train.lr, betas)
        case "muon":
            return Muon(groups, train.lr, betas, train.momentum, torch.bfloat16 if train.precision == "bf16" else torch.float32)
    return torch.optim.AdamW(groups, lr=train.lr, betas=betas, fused=True)


def assign_rules(model: nn.Module, optimizer: Rule, blocks: tuple[type[nn.Module], ...]) -> dict[nn.Parameter, Rule]:
    """Return the rule of each trained parameter, in the model's order; independent of sharding, and works on meta."""
    embeddings = find_embeddings(model)
    in_blocks = {id(parameter) for block in blocks_of(model, blocks) for parameter in block.parameters()}
    takes: dict[Rule, Callable[[nn.Parameter], bool]] = {
        "adamw": lambda _: True,
        "adamw_8bit": adamw_8bit.can_store_in_8_bits,
        "muon": lambda parameter: parameter.dim() == 2 and id(parameter) in in_blocks,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {each: optimizer if id(each) not in embeddings and takes[optimizer](each) else "adamw" for each in trained}


def find_embeddings(model: nn.Module) -> set[int]:
    """Return the ids of the weights of embeddings, including tied ones."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def check_rules(model: nn.Module, optimizer: Rule, rules: Mapping[nn.Parameter, Rule]) -> None:
    """Raises `UserError` for a parameter whose sharding its rule does not support, or if no parameter has the rule of `optimizer`."""
    if optimizer not in rules.values():
        wanted = {"adamw_8bit": f"has rows of {adamw_8bit.BLOCK} values or more", "muon": "is in a block"}
        raise UserError(f"train.optimizer: {optimizer} would have no effect: no trained matrix {wanted[optimizer]}; use adamw")
    for name, parameter in model.named_parameters():
        match rules.get(parameter):
            case "adamw_8bit":
                adamw_8bit.check_layout(plain_name(name), parameter)
            case "muon":
                muon.check_layout(plain_name(name), parameter)


def state_bytes(parameter: nn.Parameter, rule: Rule) -> float:
    """Return the bytes of optimizer state per element of a parameter."""
    match rule:
        case "adamw_8bit":
            return adamw_8bit.state_bytes(parameter)
        case "muon":
            return muon.STATE_BYTES
    return 8


def describe_rules(optimizer: torch.optim.AdamW) -> str | None:
    """Log line with the number of parameters that each rule updates; None if all use AdamW."""
    counts: dict[str, int] = {}
    for group in optimizer.param_groups:
        counts[group["rule"]] = counts.get(group["rule"], 0) + sum(whole.numel() for whole in group["of"])
    if set(counts) == {"adamw"}:
        return None
    return "optimizer: " + ", ".join(f"{rule} for {count:,} parameters" for rule, count in counts.items())


def iterate_parameters(optimizer: torch.optim.AdamW) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """(parameter of the model, this rank's shard in the optimizer), for each trained parameter."""
    return ((whole, own) for group in optimizer.param_groups for whole, own in zip(group["of"], group["params"], strict=True))


def learning_rate(step: int, total: int, train: Train) -> float:
    """Learning rate of optimizer step `step` (0 is the first) of `total`: linear warm-up, then cosine decay or constant."""
    warmup = math.ceil(train.warmup * total)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    if train.schedule == "constant":
        return train.lr
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return train.lr * (train.final_lr + (1 - train.final_lr) * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def update_parameters(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Apply one optimizer update with this learning rate; frees the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    for whole, own in iterate_parameters(optimizer):
        # Set in each step: the first forward may move a shard (fully_shard pads or pins it), and the old memory would be kept.
        own.data = local_shard(whole)
        own.grad, whole.grad = None if whole.grad is None else local_shard(whole.grad), None
    skipped = [own for _, own in iterate_parameters(optimizer) if own.grad is None]
    optimizer.step()
    for own in skipped:
        if "step" in optimizer.state[own]:
            # AdamW counts the updates of each weight; a checkpoint has one count for all, and a resumed run must have the same.
            optimizer.state[own]["step"] += 1
    for _, own in iterate_parameters(optimizer):
        own.grad = None


def restore_state(optimizer: torch.optim.AdamW, steps: int) -> None:
    """Allocate the state of every parameter, with `steps` updates and zero moments, into which a checkpoint is loaded."""
    for group in optimizer.param_groups:
        for whole, own in zip(group["of"], group["params"], strict=True):
            optimizer.state[own] = empty_state(group["rule"], local_shard(whole), steps)


def empty_state(rule: Rule, part: Tensor, steps: int) -> dict[str, Tensor]:
    """State of this rank's shard of a parameter, with `steps` updates and zero moments."""
    match rule:
        case "adamw_8bit":
            return adamw_8bit.empty_state(part, steps)
        case "muon":
            return dict(muon.empty_state(part))
    return {
        "step": torch.tensor(float(steps), device=part.device),
        "exp_avg": torch.zeros_like(part),
        "exp_avg_sq": torch.zeros_like(part),
    }


def sharded_state(optimizer: torch.optim.AdamW) -> dict[nn.Parameter, dict[str, Tensor]]:
    """Return the moments of each trained parameter of the model by their kind, such as `exp_avg`, sharded like the parameter."""
    found: dict[nn.Parameter, dict[str, Tensor]] = {}
    for group in optimizer.param_groups:
        for whole, own in zip(group["of"], group["params"], strict=True):
            state = optimizer.state[own]
            if group["rule"] == "adamw_8bit":
                found[whole] = adamw_8bit.sharded_state(whole, state)
            else:
                found[whole] = {kind: shard_like(whole, value) for kind, value in state.items() if kind != "step"}
    return found
