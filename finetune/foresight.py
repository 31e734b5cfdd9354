"""What a run will need, from its config alone: the model in shape only is built as training builds it, counted, and traced for one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from finetune import intake, models, parallel, tensor_parallel
from finetune.activations import Activations, Recomputing, trace, trim
from finetune.assembly import choose_trained
from finetune.config import Config, on_disk
from finetune.errors import UserError
from finetune.memory import Outline, outline
from finetune.recipe import Batch, Recipe, Sample, Sketch
from finetune.strategies import TENSOR_SIZES, Work
from finetune.strict_json import loads_object

DESCRIBING = ["*.json", "*.txt", "*.model", "*.jinja"]
"""What is fetched of a hub repository for a plan: no weights."""
LOOKED_AT = 64
"""Rows that are read, spread over the file: enough to know lengths to a few percent, and quick."""


@dataclass(frozen=True)
class Foresight:
    """A run before it is started."""

    config: Config
    """With `model.source` as a folder."""
    outline: Outline
    work: Work
    activations: Callable[[int, Recomputing, int], Activations]
    """(positions, recomputation, tensor-parallel ranks) → what a micro-batch of about so many positions needs."""
    misfits: tuple[str, ...]
    """What the base's weights lack, if they are there."""
    processor: Callable[[], Any]
    """What reads rows; raises `UserError` if the base's small files do not serve for it."""


def foresee(config: Config, recipe: Recipe) -> Foresight:
    """Raises `UserError` for what makes no run: a base that is not there, nothing to train, ways of batching that contradict each other."""
    config = with_folder(config)
    intake.check_batching(config, recipe)
    sketched = recipe.sketch(config) if recipe.sketch else sketch_by_rows(config, recipe)
    loaded, dtype = sketched.loaded, parallel.compute_dtype(config)
    choose_trained(loaded, recipe, config)
    counted = outline(loaded.model, loaded.blocks, dtype, config.train.optimizer, loaded.tensor_plans)
    check = partial(tensor_parallel.check_model, loaded.model, loaded.blocks, plans=loaded.tensor_plans)
    refusals = {size: refusal(config, size, check) for size in TENSOR_SIZES}
    misfits = tuple(models.misfits(loaded.model, loaded.base)) if has_weights(loaded.base) else ()
    counts = trim(loaded.model, loaded.blocks)

    @cache
    def activations(positions: int, recomputing: Recomputing, tensor: int) -> Activations:
        longest = min(intake.longest_sample(config), positions)
        batch = sketched.batch(positions // longest, longest)
        held = positions // longest * longest
        return trace(loaded.model, counts, loaded.blocks, recipe.loss, batch, held, dtype, recomputing, tensor, loaded.tensor_plans)

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
    return Foresight(config, counted, work, activations, misfits, sketched.processor)


def with_folder(config: Config) -> Config:
    """The config with the base's folder, which holds at least its config.json. Of a hub repository no weights are fetched."""
    folder = models.resolve_source(config.model.source, config.model.revision, DESCRIBING)
    return config.model_copy(update={"model": config.model.model_copy(update={"source": str(folder)})})


def has_weights(base: Path) -> bool:
    return any(base.glob("*.safetensors"))


def refusal(config: Config, size: int, check: Callable[[Config], None]) -> str | None:
    """Why `size` ranks cannot share this model's matrices, as training would say it; None if they can."""
    if config.train.compile is True:
        return "train.compile does not go with shared matrices"
    try:
        check(config.model_copy(update={"parallel": config.parallel.model_copy(update={"tensor": size})}))
    except UserError as problem:
        return str(problem)
    return None


def sketch_by_rows(config: Config, recipe: Recipe) -> Sketch:
    """Of a recipe without `sketch`: it loads as for training, and the longest of some rows is repeated."""
    recipe.prepare(config)
    loaded = recipe.load(config)
    samples = [recipe.read(row, loaded.processor) for _, row in some_rows(on_disk(config.data.train))]
    longest = max(samples, key=recipe.length, default=None)
    if longest is None:
        raise UserError(f"data.train: {config.data.train} holds no rows, and {config.recipe} has no `sketch` to plan without them")
    lay = recipe.pack if config.data.packing and recipe.pack else recipe.collate

    def batch(count: int, positions: int) -> Batch:
        return lay([longest] * max(1, count * positions // recipe.length(longest)))

    return Sketch(loaded, batch, lambda: loaded.processor)


def some_rows(path: Path | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of rows spread over a file, the first one among them; lines that are no rows are left to `data_prep`'s own checks."""
    if path is None or not path.is_file():
        return
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
        file.seek(0)
        apart = max(1, lines // LOOKED_AT)
        for number, raw in enumerate(file, start=1):
            if (number - 1) % apart == 0 and raw.strip():
                try:
                    row = loads_object(raw)
                except UserError as problem:
                    raise UserError(f"{path}:{number}: {problem}") from None
                yield number, row


@dataclass(frozen=True)
class Glance:
    """What some rows of the data say about all of them."""

    rows: int
    looked_at: int
    positions: float
    """Of all rows, as the ones looked at suggest."""
    problems: tuple[str, ...]
    """By file:line."""


def glance(config: Config, recipe: Recipe, processor: Any) -> Glance:
    """Read some rows as training would."""
    path = on_disk(config.data.train)
    assert path is not None
    problems, lengths, seen = [], [], 0
    for line, row in some_rows(path):
        seen += 1
        try:
            found = intake.measure(config, recipe, processor, row)
            sample: Sample | None = None if found.left_out else recipe.read(row, processor)
        except UserError as problem:
            problems.append(f"{path}:{line}: {problem}")
            continue
        lengths.append(found.positions)
        if sample is not None and not any(recipe.collate([sample]).targets.values()):
            problems.append(f"{path}:{line}: nothing in this row is learned")
    with path.open("rb") as file:
        rows = sum(1 for raw in file if raw.strip())
    return Glance(rows, seen, rows * sum(lengths) / max(len(lengths), 1), tuple(problems))
