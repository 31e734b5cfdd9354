"""From a resolved config to a run that is ready to train: base, data, model, shards, optimizer, and where it stopped last time."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetune import (
    adapters,
    batches,
    checkpoint,
    files,
    intake,
    load_balance,
    models,
    optim,
    parallel,
    preflight,
    quantized,
    recompute,
    tensor_parallel,
)
from finetune.batches import Order, Place
from finetune.compilation import compile_blocks, decide, fixed_positions
from finetune.config import Config, on_disk
from finetune.config_diff import Change, changes, flatten
from finetune.copies import bring
from finetune.errors import UserError
from finetune.events import Events
from finetune.hub_download import commit_of
from finetune.layers import read_layer
from finetune.loop import Progress
from finetune.recipe import Loaded, Recipe
from finetune.rows import Rows, discard_others
from finetune.step import Training
from finetune.vital_signs import FOLDER as SIGNS
from finetune.vital_signs import account_of_killed
from finetune.world import World, once, together

WORD = "exit.json"
"""In a run's folder: why the last launch ended. None while one is going on."""


def build(
    config: Config, recipe: Recipe, world: World, claimed: Callable[[str | None], None] = lambda _: None
) -> tuple[Training, Progress]:
    """Everything that trains, sharded and filled, and the place where it starts. Collective: call on every rank.

    `claimed` is called once the run's folder is this run's own, with what became of the launch before if that left no word of it.
    """
    strategy = check(config, recipe, world)
    world = replace(world, tensor=config.parallel.tensor)
    cache = config.run.dir / "cache"
    claimed(once(world, lambda: claim(config.run.dir)))
    preflight.check_shared(config.run.dir, world)
    local = intake.localised(config, world)
    base_files = once(world, lambda: digests_of_base(config, recipe))
    once(world, lambda: recipe.prepare(local))
    loaded = together(world, lambda: recipe.load(local))
    together(world, lambda: tensor_parallel.check_model(loaded.model, loaded.blocks, config, loaded.tensor_plans))
    key = once(world, lambda: intake.data_key(config, loaded))
    data_files = (on_disk(local.data.train), on_disk(local.data.val))
    rows, val = (intake.open_data(path, cache, key, recipe, loaded, config, world) for path in data_files)
    assert rows is not None  # train.check_inputs made sure
    once(world, lambda: discard_others(cache, filter(None, data_files)))
    together(world, lambda: choose_trained(loaded, recipe, config))
    size = preflight.checkpoint_bytes_of(loaded.model, config.train.optimizer, loaded.blocks)
    together(world, lambda: preflight.check_room(config.run.dir, size))
    total = config.train.steps or batches.count_steps(Order.of(config), rows.lengths, config.train.epochs)
    compiled = decide(config, loaded, world, total)
    fixed = fixed_positions(config, recipe) if compiled.on else None
    recompute.wrap(loaded.model, loaded.blocks, config.train.activation_checkpointing)
    layout = parallel.shard(loaded.model, loaded.blocks, strategy, config, world, loaded.tensor_plans)
    home = parallel.home_of_shards(config, world)
    together(world, lambda: models.materialise(loaded.model, loaded.base, loaded.buffers, world.device, config.run.seed, home))
    parallel.check_sharding(loaded.model, loaded.blocks, layout, world, home, loaded.tensor_plans)
    verify(loaded, config, recipe, world)
    if compiled.on:
        compile_blocks(loaded.model, loaded.blocks, fixed is not None)
    loaded = replace(loaded, remarks=(*loaded.remarks, *filter(None, [compiled.remark])))
    optimizer = together(world, lambda: optim.make_optimizer(loaded.model, config.train, loaded.blocks))
    identity = identify(config, rows, base_files, loaded)
    training = Training(world, config, recipe, loaded, loaded.model, strategy, optimizer, rows, val, total, identity, fixed)
    return training, resume(training)


def check(config: Config, recipe: Recipe, world: World) -> parallel.Strategy:
    """What no model or data is needed for; returns the strategy. Raises `UserError`. Collective: call on every rank."""
    strategy = together(world, lambda: parallel.choose_strategy(config, os.environ))
    together(world, lambda: parallel.check_plan(strategy, config, world))
    together(world, lambda: intake.check_batching(config, recipe))
    together(world, lambda: quantized.check(config))
    together(world, lambda: optim.check(config))
    return strategy


def verify(loaded: Loaded, config: Config, recipe: Recipe, world: World) -> None:
    """The recipe's own look at the model that will be trained, which is left in training mode. Collective: call on every rank."""
    loaded.model.eval()
    together(world, lambda: recipe.verify(loaded.model, loaded, config))
    parallel.reshard(loaded.model)
    loaded.model.train()


def claim(run_dir: Path) -> str | None:
    """Make the run's folder this run's own, and clear what a killed predecessor left half written in it; returns what became of that, if
    it left no word."""
    files.own(run_dir)
    with files.no_writing_explained(run_dir):
        account = None if (run_dir / WORD).exists() else account_of_killed(run_dir)
        files.discard(run_dir / SIGNS)  # before its word, without which they would be taken for those of a killed one
        files.discard(run_dir / WORD)
        files.sweep(run_dir, WORD)
        files.make_folder(run_dir / "cache")
        files.sweep(files.make_folder(checkpoint.folder_of(run_dir)))
    return account


def digests_of_base(config: Config, recipe: Recipe) -> dict[str, str]:
    """See `models.file_digests`."""
    return models.file_digests(models.resolve_source(config.model.source, config.model.revision), recipe.base_folders)


def identify(config: Config, rows: Rows, base_files: dict[str, str], loaded: Loaded) -> dict[str, Any]:
    """What must be equal for two processes to be the same run; it stands in each checkpoint's state.json."""
    revision = commit_of(loaded.base) or config.model.revision
    base = {"source": config.model.source, "revision": revision, "digest": models.content_digest(base_files)}
    return {
        "recipe": config.recipe,
        "data": {"digest": rows.digest, "rows": len(rows), "positions": int(rows.lengths.sum())},
        "base": {**base, "files": base_files},
        "order": Order.of(config).as_json(),
        "lora": None if config.model.lora is None else config.model.lora.model_dump(),
        "quantization": config.model.quantization,
        "optimizer": config.train.optimizer,
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
    now = training.identity
    if state["optimizer"] != now["optimizer"]:
        raise UserError(
            f"{path} was saved with train.optimizer: {state['optimizer']}, whose state {now['optimizer']} cannot use; resume with "
            f"--train.optimizer {state['optimizer']}, or choose another --run.dir (an export of this run can be its model.source)"
        )
    if differences := [difference(key, state[key], now[key]) for key in checkpoint.differences(state, now)]:
        raise UserError(
            f"{path} belongs to a run with other data, base or order, and going on from it would not be the same run:\n  "
            + "\n  ".join(differences)
            + "\nRun with what it was made with, or choose another --run.dir"
        )
    if training.total < state["step"]:
        raise UserError(too_few_steps(training, path, state["step"]))
    if state["base"]["files"] is None and training.world.is_main:
        print(
            f"warning: {path} was saved by an earlier version, which knew the base by its weights and config.json alone: whether tokenizer "
            "and chat template are still the same cannot be checked; from the next checkpoint on they are part of it",
            file=sys.stderr,
            flush=True,
        )
    checkpoint.restore(path, training.model, training.optimizer, training.loaded.buffers)
    recent = tuple((loss, norm) for loss, norm in state["recent"])
    place = Place(*(state["place"][name] for name in ("epoch", "window", "micro")))
    return Progress(state["step"], place, state["validation_loss"], state["skipped"], recent)


def difference(key: str, was: Any, now: Any) -> str:
    """One key of an identity, as it was and is; of a mapping what is another, of a base the files that are other ones."""
    if key == "base":
        changed = checkpoint.changed_files(was["files"], now["files"])
        named = ", ".join(changed) or "its weights or config.json were changed"
        added = sorted(set(now["files"]) - set(was["files"])) if was["files"] is not None and now["files"] is not None else []
        away = f" (move {', '.join(added)} out of that folder)" if added and Path(now["source"]).is_dir() else ""
        digests = was["digest"] != now["digest"]
        before, after = named_base(was, digests), named_base(now, digests)
        return f"base {after if before == after else f'was {before}, now {after}'}: {named}{away}"
    if isinstance(was, dict) and isinstance(now, dict):
        names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        was, now = {name: was.get(name) for name in names}, {name: now.get(name) for name in names}
    return f"{key} was {was}, now {now}"


def named_base(base: dict[str, Any], with_digest: bool) -> str:
    """As people know it, and its digest."""
    revision = f"@{base['revision']}" if base["revision"] else ""
    digest = f" ({base['digest'][:12]}…)" if with_digest else ""
    return f"{base['source']}{revision}{digest}"


def too_few_steps(training: Training, path: Path, reached: int) -> str:
    """Why a run cannot end before the checkpoint that it would resume from."""
    train = training.config.train
    wanted = f"train.steps: {train.steps}" if train.steps else f"train.epochs: {train.epochs}, which are {training.total:,} steps"
    earlier = shlex.join(["python", "-m", "finetune", "export", str(training.config.run.dir), "--step", "N", "--to", "FOLDER"])
    return (
        f"{wanted}, but {path} is of step {reached:,} already; give --train.steps {reached} or more, export an earlier step "
        f"({earlier}), or choose another --run.dir"
    )


def introduce(training: Training, progress: Progress, events: Events) -> None:
    """Say what is about to happen, before it takes hours."""
    world, config = training.world, training.config
    trained = sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad)
    everything = sum(parameter.numel() for parameter in training.model.parameters())
    start = f"resuming from step {progress.step}" if progress.step else f"a fresh start in {config.run.dir}"
    events.say(
        f"{config.recipe}: {trained:,} of {everything:,} parameters train, {training.strategy} on {world.size} × {world.device.type}, "
        f"{config.train.precision}; {len(training.rows):,} rows, {training.total:,} steps; {start}"
    )
    accounts = [text for rows in (training.rows, training.val) if rows is not None for text in intake.account(rows)]
    balance = load_balance.advice(Order.of(config), training.rows.lengths, world.data_size)
    for text in filter(None, (*training.loaded.remarks, optim.account(training.optimizer), *accounts, balance)):
        events.say(text)
    facts = {"world": world.size, "strategy": training.strategy, "total": training.total}
    if progress.step:
        try:
            found = changes_since(training, progress.step)
        except UserError as error:
            events.say(f"warning: what was changed since step {progress.step} is not known: {error}")
            found = []
        events.resumed(progress.step, found, facts)
    else:
        events.note("started", 0, **facts)


def changes_since(training: Training, step: int) -> list[Change]:
    """What of the configuration and of the launch is another than when the checkpoint of `step` was saved."""
    path, config = checkpoint.folder_of(training.config.run.dir) / f"step-{step:08d}", training.config
    state, was = checkpoint.read_state(path), read_layer(path / "config.yaml").values
    launched = {"ranks": training.world.size, "strategy": training.strategy, "device": training.world.device.type}
    before = {"ranks": state["world"], "strategy": state["strategy"], "device": state["device"] or training.world.device.type}
    if state["validation"] is not None and training.val is not None:
        launched["validation_data"], before["validation_data"] = training.val.digest, state["validation"]
    chosen = flatten(config.model_dump(mode="json", exclude_defaults=True))
    return changes({**was, "launch": before}, {**config.model_dump(mode="json"), "launch": launched}, chosen)
