"""`train.base_distance`: zero at the start, exact afterwards, and no part of the model; with adapters and with a copy of the base."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config, resolve
from overtone.finetune.data import batching
from overtone.finetune.data.batching import Loader, Place
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import base_kl_loss
from overtone.finetune.modeling.lora_adapters import switch_off_adapters
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.planning.memory import Arrangement, estimate_memory
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import BASE_DISTANCE, Batch, Loaded
from overtone.finetune.training import setup
from overtone.finetune.training.step import Training, train_step
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.finetune import tiny
from tests.finetune.training.test_loop import fitted
from tests.recipes.llm_sft import tiny_runs

KINDS: dict[str, tuple[tuple[str, str], ...]] = {
    "full": (("train.lr", "1e-2"),),
    "lora": (("train.lr", "5e-2"), ("model.lora", "{rank: 4, alpha: 8}")),
}
WEIGHT = ("train.base_distance", "0.5")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base, and two chats beside it."""
    folder = tmp_path_factory.mktemp("base")
    tiny_runs.write_base(folder)
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny_runs.rows()))
    return folder


def config_of(base: Path, folder: Path, kind: str, *overrides: tuple[str, str]) -> Config:
    given = {
        **{"run.dir": folder / "run", "model.source": base, "data.train": base / "chats.jsonl", "train.steps": 4},
        **{"train.precision": "fp32", "train.warmup": "0", "train.global_batch_tokens": 60, "train.micro_tokens": 90},
        **{"log.trackers": "[]"},
        **dict(KINDS[kind]),
        **dict(overrides),
    }
    return resolve("llm_sft", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])


def build(world: World, config: Config) -> Training:
    tiny.let_go(config.run.dir)
    return setup.build(config, RECIPE, world)[0]


def take_steps(training: Training) -> Iterator[dict[str, float]]:
    """Endless: the numbers of one step after the other."""
    for number, step in enumerate(batching.steps(training.order, training.rows.lengths, Place(), None)):
        loader = Loader(training.rows, training.recipe, 0, 1)
        yield train_step(training, loader.turns(step.micros), number)
        loader.close()


def make_batch(training: Training) -> Batch:
    loader = Loader(training.rows, training.recipe, 0, 1)
    batch = training.recipe.collate([loader.sample(row) for row in range(2)])
    loader.close()
    return batch


@pytest.mark.parametrize("kind", KINDS)
def test_at_step_0_the_distance_and_its_gradient_are_zero(base: Path, tmp_path: Path, world: World, kind: str) -> None:
    """So the first step is the same with the term and without it."""
    first = {}
    for name, weight in (("with", "0.5"), ("without", "0")):
        training = build(world, config_of(base, tmp_path / name, kind, ("train.base_distance", weight)))
        first[name] = next(take_steps(training))
        assert (training.base is not None) == (kind == "full" and name == "with")
    assert first["with"][BASE_DISTANCE] == 0 and BASE_DISTANCE not in first["without"]
    for key in ("loss", "nll", "grad_norm"):
        assert first["with"][key] == pytest.approx(first["without"][key], rel=1e-7)


def distance_of_full_logits(training: Training, batch: Batch) -> Tensor:
    """KL(base ‖ model), summed over the targets of a batch, from all logits of both."""
    model: Any = training.model
    other: Any = model if training.base is None else training.base
    states = model(batch.tensors, result="states")
    with torch.no_grad(), switch_off_adapters(other):
        base_logits = functional.linear(other(batch.tensors, result="states"), other.get_submodule(other.head_path).weight)
    logits = functional.linear(states, model.get_submodule(model.head_path).weight)
    return functional.kl_div(logits.log_softmax(-1), base_logits.log_softmax(-1), reduction="sum", log_target=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_full_logits(base: Path, tmp_path: Path, world: World, kind: str) -> None:
    training = build(world, config_of(base, tmp_path, kind, WEIGHT))
    steps = take_steps(training)
    for _ in range(3):
        next(steps)
    batch = make_batch(training)
    assert batch.targets[BASE_DISTANCE] == batch.targets["nll"] > 10
    model: Any = training.model
    found: list[dict[str, Tensor]] = []
    sums = []
    for plain in (False, True):
        training.model.zero_grad()
        term = training.recipe.loss(training.model, batch)[BASE_DISTANCE]  # the forward that replaces the weights by local ones
        total = distance_of_full_logits(training, batch) if plain else term.sum
        (total * 0.5).backward()
        assert term.weight == 0.5 and all(module.training for module in model.modules()), "the base's eval mode has ended"
        sums.append(float(total.detach()))
        found.append({name: each.grad.full_tensor().clone() for name, each in model.named_parameters() if each.grad is not None})
    assert sums[0] == pytest.approx(sums[1], rel=1e-4) and sums[0] > 0.1
    assert found[0].keys() == found[1].keys() and found[0]
    for name, gradient in found[0].items():
        assert (gradient - found[1][name]).norm() <= 1e-3 * found[1][name].norm() + 1e-7, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_has_the_same_numbers_and_its_checkpoints_no_copy_of_the_base(
    base: Path, tmp_path: Path, world: World, kind: str
) -> None:
    logs = {}
    for name, stops in (("whole", ("4",)), ("resumed", ("2", "4"))):
        for stop in stops:
            changes = (WEIGHT, ("train.steps", stop), ("train.schedule", "constant"))
            config = config_of(base, tmp_path / name, kind, *changes)
            tiny.let_go(config.run.dir)
            fitted(*setup.build(config, RECIPE, world), world)
        events = [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "step"]
        logs[name] = [[event[key] for key in ("loss", "nll", BASE_DISTANCE, "grad_norm")] for event in events]
    assert logs["whole"] == logs["resumed"] and len(logs["whole"]) == 4 and logs["whole"][-1][2] > 0.001
    (file,) = checkpoint.find(tmp_path / "whole" / "run").glob("*.safetensors")
    training = build(world, config_of(base, tmp_path / "plain", kind))
    trained = checkpoint.training_tensors(training.model, training.optimizer, {})
    with safe_open(file, "pt") as stored:
        names = set(stored.keys())
    assert {name for name in names if not name.startswith("optimizer.")} == set(trained)
    assert len(names) == len(trained) + 2 * sum(parameter.requires_grad for parameter in training.model.parameters())
    tiny.let_go(tmp_path / "whole" / "run")
    with pytest.raises(UserError, match=r"train\.base_distance was set, now 0"):
        build(world, config_of(base, tmp_path / "whole", kind))


COMPILED: dict[str, tuple[tuple[str, str], ...]] = {
    "compiled": (("train.compile", "true"),),
    "compiled and recomputed": (("train.compile", "true"), ("train.activation_checkpointing", "full")),
    "recomputed in part": (("train.activation_checkpointing", "selective"),),
}


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("changes", COMPILED.values(), ids=[*COMPILED])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_and_recomputed_blocks_have_the_same_distance(
    base: Path, tmp_path: Path, world: World, kind: str, changes: tuple[tuple[str, str], ...]
) -> None:
    """With adapters, the same compiled blocks run with the adapters and without them, in training and in eval mode, and neither pass may
    have the code of the other. The compiler rounds otherwise than the base's blocks do, which are not compiled."""
    numbers = {}
    for name, own in (("plain", ()), ("changed", changes)):
        steps = take_steps(build(world, config_of(base, tmp_path / name, kind, WEIGHT, ("parallel.strategy", "fsdp"), *own)))
        numbers[name] = [next(steps) for _ in range(4)]
    first = numbers["changed"][0][BASE_DISTANCE]
    assert abs(first) <= (1e-5 if "train.compile" in dict(changes) else 0) and numbers["plain"][-1][BASE_DISTANCE] > 0.001
    for one, other in zip(numbers["changed"], numbers["plain"], strict=True):
        assert [one[key] for key in ("loss", "nll", BASE_DISTANCE)] == pytest.approx(
            [other[key] for key in ("loss", "nll", BASE_DISTANCE)], abs=2e-5
        )
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_on_a_cpu_offload_and_liger_are_refused_with_the_term_too(base: Path, tmp_path: Path, world: World) -> None:
    with pytest.raises(UserError, match="parallel.offload"):
        build(world, config_of(base, tmp_path / "offload", "full", WEIGHT, ("parallel.offload", "true"), ("parallel.strategy", "fsdp")))
    with pytest.raises(UserError, match="options.loss_head: liger needs a CUDA GPU"):
        build(world, config_of(base, tmp_path / "liger", "full", WEIGHT, ("options.loss_head", "liger")))


def test_what_cannot_be_compared_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.base_distance.*greater than or equal to 0"):
        config_of(base, tmp_path, "lora", ("train.base_distance", "-1"))
    config = config_of(base, tmp_path, "lora", WEIGHT)
    with pytest.raises(UserError, match=r"train\.base_distance: 0\.5, but the recipe llm_sft does not define `base_distance`"):
        base_kl_loss.check(config.train.base_distance, config.recipe, replace(RECIPE, base_distance=None))
    chosen = config_of(base, tmp_path, "lora")
    base_kl_loss.check(chosen.train.base_distance, chosen.recipe, replace(RECIPE, base_distance=None))
    loaded: Loaded = RECIPE.load(config)
    base_kl_loss.check_model(loaded, RECIPE, config.train.base_distance)
    with pytest.raises(UserError, match="the base has no score.weight, so it makes no predictions to keep"):
        base_kl_loss.check_model(
            replace(loaded, added={"score.weight": lambda generator, shape: torch.zeros(shape)}), RECIPE, config.train.base_distance
        )
    loaded.model.set_submodule("lm_head", torch.nn.Linear(32, 8, device="meta"))
    with pytest.raises(UserError, match="with an adapter on the output head lm_head: exclude it with model.lora.targets"):
        base_kl_loss.check_model(loaded, RECIPE, config.train.base_distance)


def test_the_plan_counts_a_copy_of_the_base_only_without_adapters(base: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        found = []
        for weight in ("0", "0.5"):
            run = estimate_run(config_of(base, tmp_path, kind, ("train.base_distance", weight)), RECIPE)
            work = run.work.activations("none", 1)
            found.append((estimate_memory(run.outline, Arrangement("ddp", 1), work, run.work.compute), work, run.outline.total))
        (without, plain, size), (with_term, compared, _) = found
        assert with_term.lasting - without.lasting == (4 * size if kind == "full" else 0), "in fp32"
        assert compared.loss > plain.loss and compared.kept - plain.kept < 0.2 * plain.kept, "the base keeps nothing but its states"
        assert 1.2 * plain.flops < compared.flops < 2 * plain.flops, "one more forward pass, and products of the head"
        halves = [estimate_memory(replace(run.outline), Arrangement("fsdp", ranks), compared, run.work.compute) for ranks in (1, 2)]
        assert halves[1].lasting < 0.6 * halves[0].lasting, "it is sharded"
