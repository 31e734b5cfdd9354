"""The first steps as a person would write them: one process, fp64, row by row, one sum over one count; no code of the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

WIDER = {torch.float32: torch.float64}


class Fp64(TorchFunctionMode):
    """transformers computes norms and angles in fp32, recipes their losses: in here all of that is fp64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.float:
            return args[0].double()
        wider = {name: WIDER.get(value, value) if isinstance(value, torch.dtype) else value for name, value in (kwargs or {}).items()}
        return function(*(WIDER.get(value, value) if isinstance(value, torch.dtype) else value for value in args), **wider)


class Filled:
    """A model on meta, called with these values."""

    def __init__(self, model: Any, values: dict[str, Tensor]) -> None:
        self.model, self.values, self.weights = model, values, getattr(model, "weights", None)

    def __call__(self, tensors: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(self.model, self.values, (tensors,))


def first_steps(recipe: Any, config: Any, rows: list[Any], adapters: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of `train.steps` steps over all rows, gradients of the first; of `adapters` alone (name → A or B) if there are any."""
    loaded, train, lora = recipe.load(config), config.train, config.model.lora
    stored = load_file(Path(loaded.base) / "model.safetensors")
    base = {name: stored[name].double() for name, _ in loaded.model.named_parameters()}
    trained = {name: value.double().requires_grad_() for name, value in (adapters or base).items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=train.lr, betas=(train.beta1, train.beta2), weight_decay=0.0)
    batches = [recipe.collate([recipe.read(row, loaded.processor, Path())]) for row in rows]
    counts = {name: sum(batch.targets[name] for batch in batches) for name in batches[0].targets}
    losses, gradients = [], {}
    for _ in range(train.steps):
        values = {**base, **trained, **loaded.buffers}
        for down in [name for name in trained if ".lora_A." in name]:
            a, b, weight = trained[down], trained[down.replace("lora_A", "lora_B")], down.split(".lora_A.")[0] + ".weight"
            values[weight] = base[weight] + lora.alpha / lora.rank * b @ a
        with Fp64():
            terms = [recipe.loss(Filled(loaded.model, {n: v for n, v in values.items() if ".lora_" not in n}), batch) for batch in batches]
            loss = sum(term.weight * term.sum / counts[name] for each in terms for name, term in each.items() if term.weight)
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or {name: value.grad.clone() for name, value in trained.items()}
        torch.nn.utils.clip_grad_norm_(trained.values(), train.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients
