"""AdamW, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from finetune.config import Train
from finetune.parallel import by_mesh


def make_optimizer(model: nn.Module, train: Train) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over what is trained; only linear matrices decay. Build it after sharding: it keeps the shards."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decays = [parameter for parameter in trained if parameter.dim() > 1 and id(parameter) not in embeddings]
    chosen = {id(parameter) for parameter in decays}
    rest = [parameter for parameter in trained if id(parameter) not in chosen]
    groups = [
        {"params": group, "weight_decay": decay}
        for parameters, decay in ((decays, train.weight_decay), (rest, 0.0))
        for group in by_mesh(parameters)  # one fused update refuses tensors of different meshes
    ]
    on_gpu = trained[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=train.lr, betas=(train.beta1, train.beta2), fused=on_gpu)


def learning_rate(step: int, total: int, train: Train) -> float:
    """Rate of optimizer step `step` (0 is the first) out of `total`: linear warm-up, then a cosine or a constant."""
    warmup = math.ceil(train.warmup * total)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    if train.schedule == "constant":
        return train.lr
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return train.lr * (train.final_lr + (1 - train.final_lr) * 0.5 * (1 + math.cos(math.pi * progress)))


def update(optimizer: torch.optim.AdamW, rate: float) -> None:
    """One update of the weights at this learning rate; the gradients are given up."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def restore_state(optimizer: torch.optim.AdamW, steps: int) -> None:
    """Give every parameter the state it has after `steps` updates, moments still zero: the tensors that a checkpoint is read into."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            place = parameter.device if group["fused"] else torch.device("cpu")
            optimizer.state[parameter] = {
                "step": torch.tensor(float(steps), device=place),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
