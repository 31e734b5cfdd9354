"""Estimate of a run from its config: builds the model on the meta device, counts its parameters, and traces one training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from finetune.config import Config, on_disk
from finetune.data import dataset_opening, referenced_files
from finetune.data.context_rows import EarlierRows, find_earlier_rows, read_with_context
from finetune.data.mixture import compute_shares, describe_equal_files, describe_share, name_sources
from finetune.distributed import sharding, tensor_parallel
from finetune.errors import UserError
from finetune.modeling import base_kl_loss, loading
from finetune.modeling.trained_parameters import choose_trained
from finetune.planning.activation_memory import Activations, Recomputing, trace_step, trim_stacks
from finetune.planning.memory import Outline, outline_model
from finetune.planning.parallelism_planner import TENSOR_SIZES, Work
from finetune.recipe import POSITIONS, Batch, Loaded, Recipe, Sample, Sketch
from finetune.storage import files, strict_json
from finetune.storage.strict_json import loads_object

DESCRIBING = ["*.json", "*.txt", "*.model", "*.jinja"]
"""Files of a hub repository that a plan downloads: no weights."""
LOOKED_AT = 64
"""Number of rows to read, spread over the file: enough to estimate lengths to a few percent."""


@dataclass(frozen=True)
class RunEstimate:
    """Estimate of a run before it starts."""

    config: Config
    """With `model.source` as a folder."""
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


def estimate_run(config: Config, recipe: Recipe) -> RunEstimate:
    """Estimate a run. Raises `UserError` for a missing base, no trained parameters, or contradictory batching settings."""
    config = resolve_base(config)
    dataset_opening.check_batching(config, recipe)
    base_kl_loss.check(config, recipe)
    sketched = recipe.sketch(config) if recipe.sketch else sketch_from_rows(config, recipe)
    loaded, dtype = sketched.loaded, sharding.compute_dtype(config)
    choose_trained(loaded, recipe, config)
    base_kl_loss.check_model(loaded, recipe, config)
    counted = outline_model(loaded.model, loaded.blocks, dtype, config.train.optimizer, loaded.tensor_plans)
    loss = recipe.loss
    if config.train.base_distance:
        counted = replace(counted, with_base=config.model.lora is None)
        # The model stands for the base's copy: a forward pass of either takes the same memory, and the copy's weights are counted above.
        loss = base_kl_loss.add_term(recipe, config.train.base_distance, None).loss
    check = partial(tensor_parallel.check_model, loaded.model, loaded.blocks, plans=loaded.tensor_plans)
    refusals = {size: find_refusal(config, size, check) for size in TENSOR_SIZES}
    misfits = find_misfits(loaded) if has_weights(loaded.base) else ()
    counts = trim_stacks(loaded.model, loaded.blocks)

    @cache
    def activations(positions: int, recomputing: Recomputing, tensor: int) -> Activations:
        samples = -(-positions // dataset_opening.longest_sample(config))
        batch, held = sketched.batch(samples, positions // samples), positions // samples * samples
        try:
            return trace_step(loaded.model, counts, loaded.blocks, loss, batch, held, dtype, recomputing, tensor, loaded.tensor_plans)
        except (RuntimeError, ValueError) as error:
            if not misfits:
                raise
            raise UserError(f"model.source: {misfits[0]} ({len(misfits)} tensors of {loaded.base} do not match its config.json)") from error

    train = config.train
    work = Work(
        outline=counted,
        activations=lambda recomputing, tensor: activations(train.micro_tokens, recomputing, tensor),
        micro_tokens=train.micro_tokens,
        global_batch_tokens=train.global_batch_tokens,
        compute=dtype.itemsize,
        recomputing=train.activation_checkpointing,
        refuses_tensor=refusals.get,
    )
    return RunEstimate(config, counted, work, activations, misfits, sketched.processor, recipe.unit)


def resolve_base(config: Config) -> Config:
    """The config with `model.source` as a local folder that contains at least config.json. Downloads no weights from the hub."""
    folder = loading.resolve_source(config.model.source, config.model.revision, DESCRIBING)
    return config.model_copy(update={"model": config.model.model_copy(update={"source": str(folder)})})


def find_misfits(loaded: Loaded) -> tuple[str, ...]:
    return tuple(loading.find_misfits(loaded.model, loaded.base, loaded.added, loaded.stored_names))


def has_weights(base: Path) -> bool:
    return any(base.glob("*.safetensors"))


def find_refusal(config: Config, size: int, check: Callable[[Config], None]) -> str | None:
    """Why this model cannot use `size` tensor-parallel ranks, with the message of training; None if it can."""
    if config.train.compile is True:
        return "train.compile does not work with tensor parallelism"
    try:
        check(config.model_copy(update={"parallel": config.parallel.model_copy(update={"tensor": size})}))
    except UserError as problem:
        return str(problem)
    return None


def sketch_from_rows(config: Config, recipe: Recipe) -> Sketch:
    """Sketch of a recipe without `sketch`: loads the model as for training, and repeats the longest of some rows."""
    recipe.prepare(config)
    loaded = recipe.load(config)
    paths = [path for path in map(on_disk, config.data.training_files()) if path is not None]
    read = [sample for path in paths for sample in read_some_samples(path, config, recipe, loaded.processor)]
    longest = max((sample for sample in read if sample is not None), key=recipe.length, default=None)
    if longest is None:
        named = f"data.train: {config.data.name_training_data() or None}"
        none = f"has no rows that data.too_long: {config.data.too_long} keeps" if read else "has no rows"
        raise UserError(f"{named} {none}, and {config.recipe} defines no `sketch` to plan without them")
    lay = recipe.pack if config.data.packing and recipe.pack else recipe.collate

    def batch(count: int, positions: int) -> Batch:
        return lay([longest] * max(1, count * positions // recipe.length(longest)))

    return Sketch(loaded, batch, lambda: loaded.processor)


def read_some_samples(path: Path, config: Config, recipe: Recipe, processor: Any) -> Iterator[Sample | None]:
    """Samples of rows spread over a file as training reads them, None if `data.too_long` drops one. Raises `UserError` with its place for
    an invalid row, and for a missing file that it names."""
    earlier = find_earlier_rows(path, recipe, config.options)
    for line, row in read_some_rows(path):
        try:
            yield inspect_row(path, row, earlier, config, recipe, processor)[1]
        except UserError as problem:
            raise UserError(f"{path}:{line}: {problem}") from None


def inspect_row(
    path: Path, row: dict[str, Any], earlier: EarlierRows | None, config: Config, recipe: Recipe, processor: Any
) -> tuple[int, Sample | None]:
    """Positions and sample of a row as training reads it; 0 and None if `data.too_long` drops it. Raises `UserError` for an invalid row, a
    missing file that it names, and an exception of the recipe, which is a bug of the recipe."""
    folder = dataset_opening.data_folder(path)
    try:
        referenced_files.describe_files(recipe.files(row), folder)
        found = dataset_opening.measure_row(config, recipe, processor, row, folder, earlier)
        if found.left_out:
            return 0, None
        sample = read_with_context(recipe, processor, row, folder, earlier)
    except UserError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {strict_json.one_line(error)}"
        raise UserError(
            f"the recipe {config.recipe} cannot read this row ({problem}); its functions should raise UserError with the problem"
        ) from error
    return found.positions, recipe.truncate(sample, found.positions) if found.cut and recipe.truncate is not None else sample


def read_some_rows(path: Path | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of rows spread over a file, including the first; blank lines are skipped. Raises `UserError` for invalid JSON."""
    if path is None or not path.is_file():
        return
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
        file.seek(0)
        stride = max(1, lines // LOOKED_AT)
        for number, raw in enumerate(file, start=1):
            if (number - 1) % stride == 0 and raw.strip():
                try:
                    row = loads_object(raw)
                except UserError as problem:
                    raise UserError(f"{path}:{number}: {problem}") from None
                yield number, row


@dataclass(frozen=True)
class DataPreview:
    """Estimate of the data from some of its rows."""

    rows: int
    looked_at: int
    positions: float
    """Positions of all rows, extrapolated."""
    problems: tuple[str, ...]
    """Problems of rows, with file and line."""
    shares: tuple[str, ...] = ()
    """One line for each file of `data.mix`."""


def preview_data(config: Config, recipe: Recipe, processor: Any) -> DataPreview:
    """Read some rows as training would. Positions are those of an epoch."""
    paths = [path for path in map(on_disk, config.data.training_files()) if path is not None]
    found = [preview_file(path, config, recipe, processor) for path in paths]
    if not config.data.mix:
        return found[0]
    rows, names = sum(each.rows for each in found), name_sources([file.path for file in config.data.mix])
    shares = compute_shares([file.weight for file in config.data.mix])
    means = [each.positions / max(each.rows, 1) for each in found]
    epochs = None if config.train.steps else config.train.epochs
    lines = [
        describe_share(name, share, each.rows, mean, rows, epochs, recipe.unit)
        for name, share, each, mean in zip(names, shares, found, means, strict=True)
        if each.rows
    ]
    positions = rows * sum(float(share) * mean for share, mean in zip(shares, means, strict=True))
    problems = [*(text for each in found for text in each.problems), *find_equal_files(paths)]
    return DataPreview(rows, sum(each.looked_at for each in found), positions, tuple(problems), tuple(lines))


def find_equal_files(paths: Sequence[Path]) -> Iterator[str]:
    """A problem for each file of a mixture that has the content of an earlier one, as `MixedRows.mix` refuses it. Only files of equal size
    are read."""
    sizes = [path.stat().st_size for path in paths]
    seen: dict[str, Path] = {}
    for path, size in zip(paths, sizes, strict=True):
        if sizes.count(size) > 1 and (first := seen.setdefault(files.digest(path), path)) is not path:
            yield describe_equal_files(first, path)


def preview_file(path: Path, config: Config, recipe: Recipe, processor: Any) -> DataPreview:
    """`preview_data` of one file."""
    earlier = find_earlier_rows(path, recipe, config.options)
    problems, lengths, seen = [], [], 0
    for line, row in read_some_rows(path):
        seen += 1
        try:
            positions, sample = inspect_row(path, row, earlier, config, recipe, processor)
        except UserError as problem:
            problems.append(f"{path}:{line}: {problem}")
            continue
        lengths.append(positions)
        if sample is not None and not any(recipe.collate([sample]).targets.values()):
            problems.append(f"{path}:{line}: this row has no training targets")
    with path.open("rb") as file:
        rows = sum(1 for raw in file if raw.strip())
    return DataPreview(rows, seen, rows * sum(lengths) / max(len(lengths), 1), tuple(problems))
