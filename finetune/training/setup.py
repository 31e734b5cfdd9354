"""Builds a run from its resolved config: base model, data, sharded model, optimizer, and the checkpoint to resume from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, JsonValue
from torch import nn

from overtone.finetune.checkpointing import checkpoint, disk_space, shared_run_folder
from overtone.finetune.config import Config, Data, Model, Parallel, Train, on_disk
from overtone.finetune.config_diff import Change, find_changes
from overtone.finetune.config_sources import read_config_file
from overtone.finetune.data import batching, dataset_opening, load_imbalance_estimate, sample_cache_key
from overtone.finetune.data.batching import Order
from overtone.finetune.data.cached_samples import Rows
from overtone.finetune.data.dataset_opening import DataOpener
from overtone.finetune.data.index_building import discard_other_indexes
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.data.row_measurement import LengthLimit
from overtone.finetune.data.run_sizes import RunSizes, settle_sizes
from overtone.finetune.distributed import activation_checkpointing, sharding, tensor_parallel
from overtone.finetune.distributed.process_group import World, run_on_all, run_on_main
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.modeling import base_kl_loss, expert_adapters, loading, lora_adapters, optimizers, quantization
from overtone.finetune.modeling.compilation import compile_blocks, decide_compilation, fixed_positions
from overtone.finetune.modeling.trained_parameters import choose_trained
from overtone.finetune.monitoring.killed_rank_diagnosis import describe_killed_launch
from overtone.finetune.monitoring.rank_status_records import FOLDER as SIGNS
from overtone.finetune.monitoring.run_logger import TRACKER_FOLDERS, Events
from overtone.finetune.monitoring.run_records import EXIT_RECORD, LOG
from overtone.finetune.monitoring.straggler_detection import RankTimes
from overtone.finetune.recipe import BASE_DISTANCE, Loaded, Recipe, RolloutSettings, find_recipe
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.terminal import print_line
from overtone.finetune.training import rollout_loop
from overtone.finetune.training.loop import Progress, find_newest, resume
from overtone.finetune.training.reference_cache import cache_reference
from overtone.finetune.training.rollout_loop import RolloutLoop
from overtone.finetune.training.sample_metrics_preparation import SamplePlan, prepare_plan
from overtone.finetune.training.step import Training, make_loader


class FolderClaim(NamedTuple):
    """State of the run's folder when a launch locked it."""

    killed: str | None
    """Account of the launch before this one, if that left no exit record."""
    record: str | None
    """Exit record of the launch before this one, which this launch has removed."""
    lock: int
    """Descriptor that holds the lock of the folder, on rank 0."""


def build(
    config: Config, recipe: Recipe, world: World, on_claim: Callable[[FolderClaim], None] = lambda _: None
) -> tuple[Training, Progress]:
    """Return the model, sharded and loaded, with data and optimizer, and the progress of the checkpoint that it resumes from.

    `on_claim` is called when this run has locked its folder.
    Collective: call on every rank.
    """
    strategy = run_on_all(world, lambda: check(config, recipe, world))
    world = replace(world, tensor=config.parallel.tensor)
    on_claim(FolderClaim(**run_on_main(world, lambda: claim_folder(config.run.dir, config.log.trackers)._asdict())))
    shared_run_folder.check_shared(config.run.dir, world)
    inputs = prepare_inputs(config, recipe, world)
    loaded, lengths = inputs.loaded, inputs.rows.lengths
    run_on_all(world, lambda: choose_trained_with_room(loaded, recipe, config.model, config.train, config.run.dir))
    newest = find_newest(config.run.dir, config.checkpoint.copy_to, world)
    started = None if newest is None else Order.of_json(checkpoint.read_state(newest)["order"])
    count = partial(batching.count_steps, lengths=lengths, epochs=config.train.epochs)
    sizes = settle_sizes(config, len(lengths), int(lengths.sum()), recipe.unit, count, started)
    training = assemble_training(sizes, recipe, inputs, strategy, world)
    check_prompts(training)
    if base_kl_loss.has_cached_reference(config.options, recipe):
        training = cache_reference(training)
    progress = resume(training, newest)
    if training.rollouts is not None:
        run_on_main(world, lambda: rollout_loop.remove_later_rollouts(config.run.dir, progress.step))
    return training, progress


class TrainingInputs(NamedTuple):
    """Inputs of a run, before its model is sharded."""

    base_files: dict[str, str]
    """Digest of each of the base's files."""
    loaded: Loaded
    """The model on the meta device."""
    load_shape: Callable[[], Loaded]
    """Returns another one."""
    sampling: SamplePlan
    rows: Rows | MixedRows
    val: Rows | MixedRows | None


def prepare_inputs(config: Config, recipe: Recipe, world: World) -> TrainingInputs:
    """Prepare the base and open the data; prints which of the two begins. Collective: call on every rank."""
    local = with_local_data(config, world)
    announce(world, f"preparing the base model {config.model.source} …")
    base_files = run_on_main(world, lambda: prepare_base(local, recipe))
    loaded = run_on_all(world, lambda: load_shape(local, recipe))
    sampling = SamplePlan.parse(run_on_main(world, lambda: prepare_plan(local, recipe).as_json()))
    announce(world, f"reading the rows of {config.data.name_training_data()} …")
    rows, val = open_data(config, local.data, recipe, loaded, world)
    return TrainingInputs(base_files, loaded, partial(load_shape, local, recipe), sampling, rows, val)


def assemble_training(sizes: RunSizes, recipe: Recipe, inputs: TrainingInputs, strategy: sharding.Strategy, world: World) -> Training:
    """Shard, load and compile the model, and make its optimizer. `sizes`: with the config of the run, whose sizes are numbers. Collective:
    call on every rank."""
    config, order, total, loaded, rows = sizes.config, sizes.order, sizes.total, inputs.loaded, inputs.rows
    compiled = decide_compilation(config.train.compile, config.model, loaded, world, total * order.step_tokens)
    fixed = fixed_positions(config.data.packing, recipe, max(order.micro_tokens, int(rows.lengths.max()))) if compiled.on else None
    activation_checkpointing.wrap_blocks(loaded.model, loaded.blocks, config.train.activation_checkpointing)
    dtype = sharding.compute_dtype(config.train.precision)
    fill = partial(shard_and_load, strategy=strategy, parallel=config.parallel, dtype=dtype, seed=config.run.seed, world=world)
    announce(world, "loading the weights …")
    fill(loaded)
    verify_model(loaded, config, recipe, world)
    if compiled.on:
        compile_blocks(loaded.model, loaded.blocks, fixed is not None)
    loaded = replace(loaded, remarks=(*sizes.remarks, *loaded.remarks, *filter(None, [compiled.remark])))
    optimizer = run_on_all(world, lambda: optimizers.make_optimizer(loaded.model, config.train, loaded.blocks))
    base = load_frozen_base(config, recipe, inputs, dtype, fill, world)
    recipe = compare_with_base(recipe, base, config.train.base_distance, config.options)
    rollout_settings = RolloutSettings(config.run.seed, dtype, world.device)
    return Training(
        world=world,
        config=config,
        recipe=recipe,
        loaded=loaded,
        model=loaded.model,
        strategy=strategy,
        optimizer=optimizer,
        rows=rows,
        val=inputs.val,
        order=order,
        total=total,
        identity=identify_run(config.recipe, config.model, config.train, order, rows, inputs.base_files, loaded),
        fixed=fixed,
        base=base,
        sampling=inputs.sampling,
        rank_times=RankTimes(world, loaded.model, loaded.blocks) if world.size > 1 else None,
        metrics=dict.fromkeys([BASE_DISTANCE] if config.train.base_distance else []),
        rollouts=RolloutLoop.open(world, recipe, loaded, config.options, rollout_settings, config.run.dir, config.model.lora, fixed),
    )


def check_prompts(training: Training) -> None:
    """Raises `UserError` before the first step, and not at the first evaluation, for data in which a recipe with a `Divergence` finds no
    other prompt. Collective: call on every rank."""
    if training.recipe.reference is None or training.recipe.reference.divergence is None:
        return
    for rows in (training.rows,) if training.val is None else (training.rows, training.val):
        with contextlib.closing(make_loader(training, rows)) as loader:
            run_on_all(training.world, loader.check_prompts)


def shard_and_load(loaded: Loaded, strategy: sharding.Strategy, parallel: Parallel, dtype: torch.dtype, seed: int, world: World) -> None:
    """Shard the model over the ranks and load its weights. `dtype`: compute type. `seed`: of new parameters. Collective: call on every
    rank."""
    layout = sharding.shard(loaded.model, loaded.blocks, strategy, parallel, dtype, world, loaded.tensor_plans)
    home = sharding.choose_home(parallel.offload, world)
    run_on_all(
        world,
        lambda: loading.materialise(loaded.model, loaded.base, loaded.buffers, world.device, seed, home, loaded.added, loaded.layouts),
    )
    sharding.check_sharding(loaded.model, loaded.blocks, layout, world, home, loaded.tensor_plans)


def compare_with_base(recipe: Recipe, base: nn.Module | None, distance: float, options: BaseModel) -> Recipe:
    """Return the recipe whose loss has everything of the base that these options need. `base`: frozen; None: the model without its
    adapters. `distance`: `train.base_distance`."""
    compared = base_kl_loss.add_term(recipe, distance, base)
    if base_kl_loss.needs_reference(options, recipe):
        compared = base_kl_loss.add_reference(compared, base)
    return base_kl_loss.choose_divergence(options, compared)


def load_frozen_base(
    config: Config, recipe: Recipe, inputs: TrainingInputs, dtype: torch.dtype, fill: Callable[[Loaded], None], world: World
) -> nn.Module | None:
    """Return the copy of the base that `train.base_distance` or the recipe's loss needs without adapters; None if it is not needed.
    Collective: call on every rank."""
    distance = recipe.base_distance if config.train.base_distance else None
    if config.model.lora is not None or (distance is None and not base_kl_loss.needs_reference(config.options, recipe)):
        return None
    model = inputs.loaded.model
    path = None if distance is None else distance.head(model)
    announce(world, f"loading the base once more, frozen, for {'the loss' if distance is None else 'train.base_distance'} …")
    # `load_base` is collective, so it must not begin before every rank has a model.
    shape = run_on_all(world, inputs.load_shape)
    return base_kl_loss.load_base(shape, model, path, dtype, fill)


def announce(world: World, stage: str) -> None:
    """Print which long stage begins now, on one rank."""
    if world.is_main:
        print_line(stage)


def check(config: Config, recipe: Recipe, world: World) -> sharding.Strategy:
    """Everything that can be checked without model and data; returns the strategy. Raises `UserError`."""
    strategy = sharding.choose_strategy(config.parallel, config.train, os.environ)
    sharding.check_plan(strategy, config.parallel, config.train, world)
    dataset_opening.check_batching(config.data, config.train, config.recipe, recipe)
    quantization.check(config.model)
    optimizers.check(config.train, config.model, config.parallel)
    base_kl_loss.check(config.train.base_distance, config.recipe, recipe)
    rollout_loop.check_settings(recipe, config.recipe, config.parallel, config.model)
    return strategy


def prepare_base(local: Config, recipe: Recipe) -> dict[str, str]:
    """On rank 0: run the recipe's `prepare_base`; returns the digest of each of the base's files (`loading.file_digests`).

    `local` is the config with data files that are on this machine.
    """
    base = loading.resolve_source(local.model.source, local.model.revision)
    loading.find_tensors(base)  # refuses quantized weights before all files are read for their digests
    base_files = loading.file_digests(base, recipe.base_folders)
    recipe.prepare(local)
    return base_files


def prepare_data(config: Config, recipe: Recipe, world: World) -> None:
    """Fill the cache of the run's folder as `build` does: downloads, what the recipe derives from data and base, the index. Loads no
    weights. Collective: call on every rank."""
    run_on_all(world, lambda: dataset_opening.check_batching(config.data, config.train, config.recipe, recipe))
    run_on_main(world, lambda: bool(files.make_folder(config.run.dir / "cache")))
    local = with_local_data(config, world)
    run_on_main(world, lambda: recipe.prepare(local))
    open_data(config, local.data, recipe, run_on_all(world, lambda: load_shape(local, recipe)), world)


def load_shape(local: Config, recipe: Recipe) -> Loaded:
    """Return the recipe's model on the meta device. Raises `UserError` if tensor parallelism cannot divide it, for a state that the recipe
    could not read again, and for a prompt of `sample.prompts` that the model could not answer."""
    loaded = recipe.load(local)
    if not isinstance(loaded.state, recipe.State):
        raise UserError(
            f"recipe {local.recipe}: load returned a state of the class {type(loaded.state).__name__}, but its Recipe has "
            f"State={recipe.State.__name__}; both must be the same class"
        )
    if local.sample.prompts and recipe.inference.check_prompts is not None:
        recipe.inference.check_prompts([*local.sample.prompts], loaded.state)
    tensor_parallel.check_model(loaded.model, loaded.blocks, local.parallel.tensor, local.model, loaded.tensor_plans)
    return loaded


def with_local_data(config: Config, world: World) -> Config:
    """Return the config with data files that are on this machine. Collective: call on every rank."""
    data = dataset_opening.download_data(config.data, config.run.dir / "cache" / "elsewhere", world)
    return config.model_copy(update={"data": data})


def open_data(
    config: Config, local: Data, recipe: Recipe, loaded: Loaded, world: World
) -> tuple[Rows | MixedRows, Rows | MixedRows | None]:
    """Training and validation rows; indexes of other data are removed from the run's cache. `local`: the section `data` with files that are
    on this machine. Collective: call on every rank."""
    cache = config.run.dir / "cache"
    opener = DataOpener(
        cache=cache,
        key=run_on_main(world, lambda: sample_cache_key.data_key(config.recipe, config.options, loaded)),
        recipe=recipe,
        folder=find_recipe(config.recipe),
        options=config.options,
        limit=LengthLimit.of(config.data, config.train),
        loaded=loaded,
        world=world,
    )
    rows, val = opener.open_training(config.data, local), opener.open_validation(config.data, local)
    paths = map(on_disk, (*local.training_files(), *local.validation_files()))
    run_on_main(world, lambda: discard_other_indexes(cache, filter(None, paths)))
    return rows, val


def choose_trained_with_room(loaded: Loaded, recipe: Recipe, model: Model, train: Train, run_dir: Path) -> None:
    """`choose_trained`. Raises `UserError` if the disk has no room for checkpoints of what is trained."""
    choose_trained(loaded, recipe, model, sharding.compute_dtype(train.precision))
    base_kl_loss.check_model(loaded, recipe, train.base_distance)
    disk_space.check_room(run_dir, disk_space.checkpoint_bytes_of(loaded.model, train.optimizer, loaded.blocks))


def verify_model(loaded: Loaded, config: Config, recipe: Recipe, world: World) -> None:
    """Run the recipe's own checks of the loaded model, and leave the model in training mode. Collective: call on every rank."""
    loaded.model.eval()
    run_on_all(world, lambda: recipe.verify(loaded.model, loaded, config))
    sharding.reshard(loaded.model)
    loaded.model.train()


def claim_folder(run_dir: Path, trackers: Sequence[str]) -> FolderClaim:
    """Lock the run's folder for this run, and remove the unfinished files of a killed launch and the exit record, which is absent while a
    launch is running. The folders of `trackers` are made here, which refuses a link: their libraries would follow it."""
    with contextlib.ExitStack() as on_failure:
        lock = files.lock_folder(run_dir)
        on_failure.callback(os.close, lock)
        files.check_log(run_dir / LOG)
        on_failure.enter_context(files.explain_write_errors(run_dir))
        record = input_files.read_bytes(run_dir / EXIT_RECORD).decode("utf-8", "replace") if (run_dir / EXIT_RECORD).exists() else None
        account = describe_killed_launch(run_dir) if record is None else None
        files.discard(run_dir / SIGNS)  # before the record: signs without a record mean a killed launch
        files.discard(run_dir / EXIT_RECORD)
        files.remove_unfinished(run_dir, EXIT_RECORD)
        for name in ["cache", *(TRACKER_FOLDERS[tracker] for tracker in trackers if tracker in TRACKER_FOLDERS)]:
            files.make_folder(run_dir / name)
        files.remove_unfinished(files.make_folder(checkpoint.folder_of(run_dir)))
        on_failure.pop_all()
    return FolderClaim(account, record, lock)


def identify_run(
    recipe: str, model: Model, train: Train, order: Order, rows: Rows | MixedRows, base_files: dict[str, str], loaded: Loaded
) -> dict[str, Any]:
    """Return the facts that must be equal for a launch to resume a checkpoint; they are part of its state.json."""
    revision = commit_of(loaded.base) or model.revision
    # As an absolute path, since an export or an evaluation may be started in another folder.
    folder = Path(str(model.source))
    source = str(folder.resolve()) if folder.is_dir() else model.source
    base = {"source": source, "revision": revision, "digest": loading.content_digest(base_files)}
    sources = rows.identify() if isinstance(rows, MixedRows) else []
    return {
        "recipe": recipe,
        "data": {"digest": rows.digest, "rows": len(rows), "positions": int(rows.lengths.sum()), "sources": sources},
        "base": {**base, "files": base_files},
        "order": order.as_json(),
        "lora": None if model.lora is None else model.lora.model_dump(),
        "quantization": model.quantization,
        "optimizer": train.optimizer,
        "recipe_state": loaded.state.as_json(),
        "added": sorted(loaded.added),
        "experts": [adapted._asdict() for adapted in expert_adapters.list_adapted(loaded.model)],
        "base_distance": train.base_distance > 0,
    }


def describe_added(loaded: Loaded) -> str | None:
    """Log line with the parameters that are initialized by seed, and which of the base they replace; None without any."""
    if not loaded.added:
        return None
    known = loading.tensor_shapes(loaded.base) | {name: (*layout.shape,) for name, layout in loaded.layouts.items()}
    shapes = {sharding.plain_name(name): [*parameter.shape] for name, parameter in loaded.model.named_parameters()}
    replaced = {name: f" in place of the base's {[*known[name]]}" for name in loaded.added if name in known}
    parts = [f"{name} {shapes[name]}{replaced.get(name, '')}" for name in sorted(loaded.added)]
    return f"new parameters, initialized by run.seed: {', '.join(parts)}"


def report_start(training: Training, progress: Progress, events: Events) -> None:
    """Print and log what is about to be trained, and where it resumes from."""
    world, config = training.world, training.config
    trained = sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad)
    everything = sum(parameter.numel() for parameter in training.model.parameters())
    start = f"resuming from step {progress.step}" if progress.step else f"a fresh start in {config.run.dir}"
    events.say(
        f"{config.recipe}: {trained:,} of {everything:,} parameters train, {training.strategy} on {world.size} × {world.device.type}, "
        f"{config.train.precision}; {format_count(len(training.rows), 'row')}, {format_count(training.total, 'step')}; {start}"
    )
    accounts = [text for rows in (training.rows, training.val) if rows is not None for text in dataset_opening.describe_dropped(rows)]
    balance = load_imbalance_estimate.suggest_sizes(training.order, training.rows.lengths, world.data_size)
    slow = world.device.type == "cpu" and config.train.precision == "bf16"
    precision = "bf16 on a CPU can be several times slower than fp32: compare with --train.precision fp32" if slow else ""
    for text in filter(
        None,
        (
            loading.describe_storage(training.loaded.base, sharding.compute_dtype(config.train.precision)),
            lora_adapters.describe_reach(training.model),
            *training.loaded.remarks,
            describe_added(training.loaded),
            optimizers.describe_rules(training.optimizer),
            *accounts,
            balance,
            precision,
        ),
    ):
        events.say(text)
    facts = {"world": world.size, "strategy": training.strategy, "total": training.total}
    if progress.step:
        try:
            found = changes_since(training, progress.step)
        except UserError as error:
            events.say(f"warning: changes of the configuration since step {progress.step} are not known: {error}")
            found = []
        other_rows = any(change.key == "launch.validation_data" for change in found)
        other_samples = any(change.key == "launch.samples" for change in found)
        events.resumed(progress.step, found, {**facts, "other_validation_data": other_rows, "other_samples": other_samples})
        if other_samples:
            events.say("prompts, recognizer or sampling have changed: measurements of samples from before are not compared with new ones")
        if other_rows:
            events.say("the validation data has changed: checkpoints and evaluations from before are not compared with those from now on")
    else:
        events.note("started", 0, **facts)


def changes_since(training: Training, step: int) -> list[Change]:
    """Changes of configuration and launch since the checkpoint of `step` was saved."""
    path, config = checkpoint.folder_of(training.config.run.dir) / f"step-{step:08d}", training.config
    state, was = checkpoint.read_state(path), read_config_file(path / "config.yaml").values
    launched: dict[str, JsonValue] = {"ranks": training.world.size, "strategy": training.strategy, "device": training.world.device.type}
    before: dict[str, JsonValue] = {"ranks": state["world"], "strategy": state["strategy"], "device": state["device"]}
    if state["validation"] is not None and training.val is not None:
        launched["validation_data"], before["validation_data"] = training.val.digest, state["validation"]
    if state["sampling"] is not None and training.sampling.digest is not None:
        launched["samples"], before["samples"] = training.sampling.digest, state["sampling"]
    return find_changes({**was, "launch": before}, {**config.model_dump(mode="json"), "launch": launched})
