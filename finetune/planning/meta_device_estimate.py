"""Estimate of a run from its config: builds the model on the meta device, counts its parameters, and traces one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from overtone.finetune.config import AUTO, Config, Train, on_disk
from overtone.finetune.data import dataset_opening, row_measurement
from overtone.finetune.data.batching import Order
from overtone.finetune.distributed import sharding, tensor_parallel
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import base_kl_loss, loading, lora_adapters
from overtone.finetune.modeling.trained_parameters import choose_trained
from overtone.finetune.planning.activation_memory import Activations, Recomputing, trace_step, trim_stacks
from overtone.finetune.planning.data_preview import make_reader
from overtone.finetune.planning.memory import Outline, outline_model
from overtone.finetune.planning.parallelism_planner import TENSOR_SIZES, Work
from overtone.finetune.recipe import POSITIONS, Batch, Loaded, Recipe, Sketch
from overtone.finetune.storage.strict_json import one_line

DESCRIBING = ["*.json", "*.txt", "*.model", "*.jinja"]
"""Files of a hub repository that a plan downloads: no weights."""


class NoEstimateError(Exception):
    """Memory and time of a run cannot be estimated; the run itself may work."""


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of a run before it starts."""

    config: Config
    """The config, in which `model.source` is a folder."""
    outline: Outline
    work: Work
    activations: Callable[[int, Recomputing, int], Activations]
    """(positions, activation checkpointing, tensor-parallel ranks) → memory of a micro-batch of about that many positions."""
    misfits: tuple[str, ...]
    """Tensors that the base lacks, or has in another shape, if its weights are there."""
    processor: Callable[[], Any]
    """Returns the processor that reads rows; raises `UserError` if the base's files are not sufficient."""
    unit: str = POSITIONS
    """`Recipe.unit`."""
    remarks: tuple[str, ...] = ()
    """Remarks on how the base is stored and what the adapters reach, and `Loaded.remarks`; training prints them at its start."""


def estimate_run(config: Config, recipe: Recipe) -> RunEstimate:
    """Estimate a run. Raises `UserError` for a missing base, no trained parameters, or contradictory batching settings."""
    folder = loading.resolve_source(config.model.source, config.model.revision, DESCRIBING)  # downloads no weights
    config = config.model_copy(update={"model": config.model.model_copy(update={"source": str(folder)})})
    dataset_opening.check_batching(config.data, config.train, config.recipe, recipe)
    base_kl_loss.check(config.train.base_distance, config.recipe, recipe)
    sketched = recipe.sketch(config) if recipe.sketch else sketch_from_rows(config, recipe)
    loaded, dtype = sketched.loaded, sharding.compute_dtype(config.train.precision)
    choose_trained(loaded, recipe, config.model, dtype)
    base_kl_loss.check_model(loaded, recipe, config.train.base_distance)
    counted = outline_model(loaded.model, loaded.blocks, dtype, config.train.optimizer, loaded.tensor_plans)
    # The model stands for the base's copy: a forward pass of either takes the same memory, and the copy's weights are counted here.
    needed = base_kl_loss.needs_reference(config.options, recipe)
    counted = replace(counted, with_base=config.model.lora is None and (needed or config.train.base_distance > 0))
    if recipe.rollouts is not None:
        taken = recipe.rollouts.count_bytes(loaded, config.options, dtype.itemsize, config.train.micro_tokens)
        counted = replace(counted, rollouts=taken)
    if config.train.base_distance:
        recipe = base_kl_loss.add_term(recipe, config.train.base_distance, None)
    loss = base_kl_loss.add_reference(recipe, None).loss if needed else recipe.loss
    check = partial(tensor_parallel.check_model, loaded.model, loaded.blocks, chosen=config.model, plans=loaded.tensor_plans)
    refusals = {size: find_refusal(config.train, size, check) for size in TENSOR_SIZES}
    misfits = find_misfits(loaded) if has_weights(loaded.base) else ()
    about_base = (loading.describe_storage(loaded.base, dtype), lora_adapters.describe_reach(loaded.model))  # before blocks are removed
    remarks = tuple(filter(None, [*about_base, *loaded.remarks]))
    counts = trim_stacks(loaded.model, loaded.blocks)

    @cache
    def activations(positions: int, recomputing: Recomputing, tensor: int) -> Activations:
        samples = -(-positions // row_measurement.longest_sample(config.data, config.train))
        batch, held = sketched.batch(samples, positions // samples), positions // samples * samples
        try:
            return trace_step(loaded.model, counts, loaded.blocks, loss, batch, held, dtype, recomputing, tensor, loaded.tensor_plans)
        except Exception as error:  # operations whose result depends on values fail in many ways without values
            if not misfits:
                raise NoEstimateError(f"one step cannot be traced without weights ({type(error).__name__}: {one_line(error)})") from error
            raise UserError(f"model.source: {misfits[0]} ({len(misfits)} tensors of {loaded.base} do not match its config.json)") from error

    train = config.train
    order = Order.of(config.run.seed, config.data, train)
    work = Work(
        outline=counted,
        activations=lambda recomputing, tensor: activations(train.micro_tokens, recomputing, tensor),
        micro_tokens=train.micro_tokens,
        global_batch_tokens=train.batch_tokens if train.global_batch_tokens == AUTO else order.step_tokens,
        compute=dtype.itemsize,
        recomputing=train.activation_checkpointing,
        refuses_tensor=refusals.get,
    )
    return RunEstimate(
        config=config,
        outline=counted,
        work=work,
        activations=activations,
        misfits=misfits,
        processor=sketched.processor,
        unit=recipe.unit,
        remarks=remarks,
    )


def find_misfits(loaded: Loaded) -> tuple[str, ...]:
    return tuple(loading.find_misfits(loaded.model, loaded.base, loaded.added, loaded.layouts))


def has_weights(base: Path) -> bool:
    return any(base.glob("*.safetensors"))


def find_refusal(train: Train, size: int, check: Callable[[int], None]) -> str | None:
    """Return why this model cannot use `size` tensor-parallel ranks, with the message of training; None if it can."""
    if train.compile is True:
        return "train.compile does not work with tensor parallelism"
    try:
        check(size)
    except UserError as problem:
        return str(problem)
    return None


def sketch_from_rows(config: Config, recipe: Recipe) -> Sketch:
    """Sketch of a recipe without `sketch`: loads the model as for training, and repeats the longest of some rows."""
    recipe.prepare(config)
    loaded = recipe.load(config)
    paths = [path for path in map(on_disk, config.data.training_files()) if path is not None]
    reader = make_reader(config, recipe, loaded.processor)
    read = [sample for path in paths for sample in reader.read_samples(path)]
    longest = max((sample for sample in read if sample is not None), key=recipe.length, default=None)
    if longest is None:
        if not paths:
            raise UserError(f"data.train is not set: give --data.train FILE; {config.recipe} defines no `sketch` to plan without rows")
        named = f"data.train: {config.data.name_training_data()}"
        none = f"has no rows that data.too_long: {config.data.too_long} keeps" if read else "has no rows"
        raise UserError(f"{named} {none}, and {config.recipe} defines no `sketch` to plan without them")
    lay = recipe.pack if config.data.packing and recipe.pack else recipe.collate

    def batch(count: int, positions: int) -> Batch:
        return lay([longest] * max(1, count * positions // recipe.length(longest)))

    return Sketch(loaded, batch, lambda: loaded.processor)
