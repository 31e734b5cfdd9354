"""The first steps of many cases, one after the other in one launched world, with what the comparison needs of them.

usage (through accelerate launch): first_steps.py CASES.json, a list of {"name", "recipe", "overrides"}; also "left_out": modules that plans
of tensor parallelism forget, to show what that would do. Leaves beside it, for each case, NAME.safetensors (`gradient.*` before the first
clipping, `start.*` of what is trained) and NAME.json (losses, norms before clipping, turns a step, equal ranks)
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from overtone.finetune.config import Config, resolve
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group, sharding
from overtone.finetune.distributed.process_group import World
from overtone.finetune.modeling import optimizers
from overtone.finetune.recipe import Loaded, Recipe, find_recipe, load_recipe
from overtone.finetune.training import setup
from overtone.finetune.training.step import make_loader, train_step


def first_steps(config: Config, recipe: Recipe, joined: World) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a case. Collective: call on every rank."""
    training, progress = setup.build(config, recipe, joined)
    names = {id(parameter): sharding.plain_name(name) for name, parameter in training.model.named_parameters()}
    kept = {f"start.{names[id(p)]}": whole(p) for p in training.model.parameters() if p.requires_grad and ".lora_" in names[id(p)]}
    clip, seen = sharding.clip_gradients, list[dict[str, Tensor]]()

    def clip_and_keep(gradients: Any, norm: float, largest: float) -> None:
        if not seen:
            given = [parameter for parameter, _ in optimizers.iterate_parameters(training.optimizer)]
            seen.append({f"gradient.{names[id(parameter)]}": whole(parameter.grad) for parameter in given})
        clip(gradients, norm, largest)

    loader = make_loader(training, training.rows)
    todo = batching.steps(training.order, training.rows.lengths, progress.place, epochs=None)
    losses, norms, turns = [], [], []
    sharding.clip_gradients = clip_and_keep
    try:
        for number, step in zip(range(training.total), todo, strict=False):
            mine = loader.turns(step.micros)
            turns.append(len(mine))
            numbers = train_step(training, mine, number)
            losses.append(numbers["loss"])
            norms.append(numbers["grad_norm"])
    finally:
        sharding.clip_gradients = clip
        loader.close()
    digests = process_group.gather_from_ranks(
        joined, hashlib.sha256(b"".join(value.numpy().tobytes() for value in seen[0].values())).hexdigest()
    )
    return kept | seen[0], {
        "losses": losses,
        "norms": norms,
        "turns": turns,
        "ranks_agree": len(set(digests)) == 1,
        "strategy": training.strategy,
    }


def leaving_out(modules: list[str], recipe: Recipe) -> Recipe:
    """The recipe with tensor-parallel plans that lack some modules."""

    def load(config: Config) -> Loaded:
        loaded = recipe.load(config)
        plans = {name: {path: cut for path, cut in plan.items() if path not in modules} for name, plan in loaded.tensor_plans.items()}
        return replace(loaded, tensor_plans=plans)

    return replace(recipe, load=load)


def whole(tensor: Any) -> Tensor:
    value = tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
    return value.to("cpu", torch.float32, copy=True).contiguous()


def main(cases: Path) -> None:
    joined = process_group.join((), Path())
    for case in json.loads(cases.read_text()):
        folder = find_recipe(case["recipe"])
        recipe = load_recipe(folder)
        config = resolve(case["recipe"], recipe.Options, [folder / "config.yaml"], case["overrides"].items())
        tensors, facts = first_steps(config, leaving_out(case.get("left_out", []), recipe), joined)
        if joined.is_main:
            save_file(tensors, cases.parent / f"{case['name']}.safetensors")
            (cases.parent / f"{case['name']}.json").write_text(json.dumps(facts))
    process_group.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
