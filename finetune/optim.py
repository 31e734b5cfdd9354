"""AdamW, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from finetune.config import Train
from finetune.parallel import own_part, sharded_as


def make_optimizer(model: nn.Module, train: Train) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over what is trained; only linear matrices decay. Build it after sharding.

    It is over this rank's own shards, as plain tensors: the update needs nobody else, and each operation on a sharded tensor costs Python
    more time than a GPU takes for it. A group's `of` are the model's parameters, in the order of its `params`, which `update` fills.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decays = [parameter for parameter in trained if parameter.dim() > 1 and id(parameter) not in embeddings]
    chosen = {id(parameter) for parameter in decays}
    rest = [parameter for parameter in trained if id(parameter) not in chosen]
    groups = [
        {"params": [nn.Parameter(own_part(parameter).new_empty(0)) for parameter in parameters], "of": parameters, "weight_decay": decay}
        for parameters, decay in ((decays, train.weight_decay), (rest, 0.0))
        if parameters
    ]
    return torch.optim.AdamW(groups, lr=train.lr, betas=(train.beta1, train.beta2), fused=True)


def pairs(optimizer: torch.optim.AdamW) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Each of the model's trained parameters, and this rank's own part of it, for which the optimizer has its state."""
    return ((whole, own) for group in optimizer.param_groups for whole, own in zip(group["of"], group["params"], strict=True))


def learning_rate(step: int, total: int, train: Train) -> float:
    """Rate of optimizer step `step` (0 is the first) out of `total`: linear warm-up, then a cosine or a constant."""
    warmup = math.ceil(train.warmup * total)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    if train.schedule == "constant":
        return train.lr
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return train.lr * (train.final_lr + (1 - train.final_lr) * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def update(optimizer: torch.optim.AdamW, rate: float) -> None:
    """One update of the weights at this learning rate; the gradients are given up."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    for whole, own in pairs(optimizer):
        # Anew each time: the first forward may move a shard (fully_shard pads or pins it then), and what it was would be kept in vain.
        own.data = own_part(whole)
        own.grad, whole.grad = None if whole.grad is None else own_part(whole.grad), None
    optimizer.step()
    for _, own in pairs(optimizer):
        own.grad = None


def restore_state(optimizer: torch.optim.AdamW, steps: int) -> None:
    """Give every parameter the state it has after `steps` updates, moments still zero: the tensors that a checkpoint is read into."""
    for whole, own in pairs(optimizer):
        part = own_part(whole)
        optimizer.state[own] = {
            "step": torch.tensor(float(steps), device=part.device),
            "exp_avg": torch.zeros_like(part),
            "exp_avg_sq": torch.zeros_like(part),
        }


def moments(optimizer: torch.optim.AdamW, kind: str) -> dict[nn.Parameter, Tensor]:
    """`exp_avg` or `exp_avg_sq` of each of the model's trained parameters, sharded as it is."""
    return {whole: sharded_as(whole, optimizer.state[own][kind]) for whole, own in pairs(optimizer)}
