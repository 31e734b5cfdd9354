"""From a resolved config to a run that is ready to train: base, data, model, shards, optimizer, and where it stopped last time."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from finetune import adapters, batches, checkpoint, files, intake, models, optim, parallel, preflight, quantized, recompute, tensor_parallel
from finetune.batches import Order, Place
from finetune.config import Config, on_disk
from finetune.copies import bring
from finetune.errors import UserError
from finetune.events import Events
from finetune.loop import Progress
from finetune.recipe import Loaded, Recipe
from finetune.rows import Rows
from finetune.step import Training
from finetune.world import World, once, together

WORD = "exit.json"
"""In a run's folder: why the last launch ended. None while one is going on."""


def build(config: Config, recipe: Recipe, world: World) -> tuple[Training, Progress]:
    """Everything that trains, sharded and filled, and the place where it starts. Collective: call on every rank."""
    strategy = together(world, lambda: parallel.choose_strategy(config, os.environ))
    together(world, lambda: parallel.check_plan(strategy, config, world))
    together(world, lambda: intake.check_batching(config, recipe))
    together(world, lambda: quantized.check(config))
    world = replace(world, tensor=config.parallel.tensor)
    cache = config.run.dir / "cache"
    once(world, lambda: claim(config.run.dir))
    preflight.check_shared(config.run.dir, world)
    local = intake.localised(config, world)
    base_digest = once(world, lambda: models.content_digest(models.resolve_source(config.model.source, config.model.revision)))
    once(world, lambda: recipe.prepare(local))
    loaded = together(world, lambda: recipe.load(local))
    together(world, lambda: tensor_parallel.check_model(loaded.model, loaded.blocks, config))
    key = once(world, lambda: intake.data_key(config, loaded))
    data_files = (on_disk(local.data.train), on_disk(local.data.val))
    rows, val = (intake.open_data(path, cache, key, recipe, loaded, config, world) for path in data_files)
    assert rows is not None  # train.check_inputs made sure
    together(world, lambda: choose_trained(loaded, recipe, config))
    together(world, lambda: preflight.check_room(config.run.dir, preflight.trained_in(loaded.model)))
    recompute.wrap(loaded.model, loaded.blocks, config.train.activation_checkpointing)
    if config.train.compile:
        compile_blocks(loaded.model, loaded.blocks)
    layout = parallel.shard(loaded.model, loaded.blocks, strategy, config, world)
    home = parallel.home_of_shards(config, world)
    together(world, lambda: models.materialise(loaded.model, loaded.base, loaded.buffers, world.device, config.run.seed, home))
    parallel.check_sharding(loaded.model, loaded.blocks, layout, world, home)
    verify(loaded, config, recipe, world)
    optimizer = optim.make_optimizer(loaded.model, config.train)
    total = config.train.steps or batches.count_steps(Order.of(config), rows.lengths, config.train.epochs)
    identity = identify(config, rows, base_digest, loaded)
    training = Training(world, config, recipe, loaded, loaded.model, strategy, optimizer, rows, val, total, identity)
    return training, resume(training)


def verify(loaded: Loaded, config: Config, recipe: Recipe, world: World) -> None:
    """The recipe's own look at the model that will be trained, which is left in training mode. Collective: call on every rank."""
    loaded.model.eval()
    together(world, lambda: recipe.verify(loaded.model, loaded, config))
    parallel.reshard(loaded.model)
    loaded.model.train()


def claim(run_dir: Path) -> int:
    """Make the run's folder this run's own, and clear what a killed predecessor left half written in it."""
    lock = files.own(run_dir)
    files.discard(run_dir / WORD)
    files.make_folder(run_dir / "cache")
    files.sweep(files.make_folder(checkpoint.folder_of(run_dir)))
    return lock


def compile_blocks(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> None:
    """torch.compile of each block in place, which keeps all names. Block by block, since what lies between gathers and reduces."""
    for module in model.modules():
        if isinstance(module, blocks):
            module.compile()


def identify(config: Config, rows: Rows, base_digest: str, loaded: Loaded) -> dict[str, Any]:
    """What must be equal for two processes to be the same run; it stands in each checkpoint's state.json."""
    return {
        "recipe": config.recipe,
        "data": {"digest": rows.digest, "rows": len(rows), "positions": int(rows.lengths.sum())},
        "base": {"source": config.model.source, "revision": config.model.revision, "digest": base_digest},
        "order": Order.of(config).as_json(),
        "lora": None if config.model.lora is None else config.model.lora.model_dump(),
        "quantization": config.model.quantization,
        "recipe_state": loaded.state,
    }


def choose_trained(loaded: Loaded, recipe: Recipe, config: Config) -> None:
    """Full fine-tuning of what the recipe trains, or adapters alone; everything frozen is kept in the compute type."""
    if config.model.lora is None:
        models.freeze(loaded.model, loaded.trainable, parallel.compute_dtype(config))
        return
    adapters.inject(loaded.model, config.model.lora, recipe.lora_targets)
    if config.model.quantization:
        quantized.quantize_base(loaded.model)
    models.freeze(loaded.model, adapters.is_adapter, parallel.compute_dtype(config))


def resume(training: Training) -> Progress:
    """Adopt the newest good checkpoint of the run's folder, or start fresh. Collective: call on every rank."""
    newest, passed_over = once(training.world, lambda: newest_checkpoint(training.config))
    for problem in passed_over if training.world.is_main else []:
        print(f"warning: passed over {problem}", file=sys.stderr, flush=True)
    return Progress() if newest is None else together(training.world, lambda: adopt(training, Path(newest)))


def newest_checkpoint(config: Config) -> list[Any]:
    """Of the run's folder, or else of its copies elsewhere. Path as text, and warnings: JSON for the other ranks."""
    path, passed_over = checkpoint.newest_good(config.run.dir)
    if path is None and config.checkpoint.copy_to is not None:
        path, more = bring(config.checkpoint.copy_to, config.run.dir)
        passed_over = [*passed_over, *more]
    return [None if path is None else str(path), passed_over]


def adopt(training: Training, path: Path) -> Progress:
    """Continue from a checkpoint. Raises `UserError` naming each difference if it belongs to another run."""
    state = checkpoint.read_state(path)
    was, now = checkpoint.identity_of(state), checkpoint.identity_of(training.identity)
    differences = [f"{key} was {state.get(key)}, now {training.identity[key]}" for key in now if was[key] != now[key]]
    if differences:
        raise UserError(
            f"{path} belongs to a run with other data, base or order, and going on from it would not be the same run:\n  "
            + "\n  ".join(differences)
            + "\nRun with what it was made with, or choose another --run.dir"
        )
    checkpoint.restore(path, training.model, training.optimizer, training.loaded.buffers)
    recent = tuple((loss, norm) for loss, norm in state.get("recent", []))
    return Progress(state["step"], Place(**state["place"]), state["validation_loss"], state.get("skipped", 0), recent)


def introduce(training: Training, progress: Progress, events: Events) -> None:
    """Say what is about to happen, before it takes hours."""
    world, config = training.world, training.config
    trained = sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad)
    everything = sum(parameter.numel() for parameter in training.model.parameters())
    start = f"going on from step {progress.step}" if progress.step else f"a fresh start in {config.run.dir}"
    events.say(
        f"{config.recipe}: {trained:,} of {everything:,} parameters train, {training.strategy} on {world.size} × {world.device.type}, "
        f"{config.train.precision}; {len(training.rows):,} rows, {training.total:,} steps; {start}"
    )
    accounts = [text for rows in (training.rows, training.val) if rows is not None for text in intake.account(rows)]
    for text in (*training.loaded.remarks, *accounts):
        events.say(text)
    kind = "resumed" if progress.step else "started"
    events.note(kind, progress.step, world=world.size, strategy=training.strategy, total=training.total)
