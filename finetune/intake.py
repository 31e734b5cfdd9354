"""What of a data file is trained on: every row is read once, and what is left out or cut is known before the first step.

What the recipe's `read` makes of a row is kept in the cache of samples, so training never calls it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from finetune import files, index_workers, remote, sample_cache
from finetune.config import Config
from finetune.errors import UserError
from finetune.recipe import Loaded, Recipe, Sample, find_recipe
from finetune.rows import SHOWN_PROBLEMS, Measured, Rows, build_index, open_rows
from finetune.world import World, once, together

DESCRIBING = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.codes", "**/*.jinja")
"""What of a base's files can change a sample: configs, tokenizers, templates, and never the weights."""
CODE = tuple(Path(__file__).resolve().parents[1] / name for name in ("finetune", "data_prep", "recipes"))
"""Folders of this project's own code."""
LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "jinja2", "sentencepiece", "tiktoken", "mistral_common")
"""Distributions whose version can change what a row is read as."""


def data_key(config: Config, loaded: Loaded) -> str:
    """Digest of all that samples depend on besides the rows: the recipe, its options, what it derived, how the base reads text, and the
    code that does it.

    The weights have no part in it, so that a look at the data need not read them.
    """
    chosen = [config.recipe, config.options.model_dump_json(), json.dumps(loaded.state, sort_keys=True)]
    paths = sorted({path for pattern in DESCRIBING for path in loaded.base.glob(pattern)})
    base = [f"{path.name} {files.digest(path)}" for path in paths]
    return hashlib.sha256("\n".join([*chosen, *base, code_version(find_recipe(config.recipe))]).encode()).hexdigest()


def code_version(recipe: Path) -> str:
    """Digest of the source of this project and of the recipe in this folder, and of the versions of the libraries that read text."""
    total = hashlib.sha256(" ".join(f"{name} {_version(name)}" for name in LIBRARIES).encode())
    for folder in (*CODE, *(() if recipe.is_relative_to(CODE[-1]) else (recipe,))):
        for path in sorted(folder.rglob("*.py")):
            total.update(f"{path.relative_to(folder)} {files.digest(path)}\n".encode())
    return total.hexdigest()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def localised(config: Config, world: World) -> Config:
    """With data files from elsewhere in the run's cache instead. Collective: call on every rank."""
    cache = config.run.dir / "cache" / "elsewhere"
    urls = {key: url for key in ("train", "val") if remote.is_url(url := getattr(config.data, key))}
    brought = once(world, lambda: {key: str(remote.fetch(url, cache)) for key, url in urls.items()})
    return config.model_copy(update={"data": config.data.model_copy(update={key: Path(path) for key, path in brought.items()})})


def open_data(path: Path | None, cache: Path, key: str, recipe: Recipe, loaded: Loaded, config: Config, world: World) -> Rows | None:
    """Index the file on one rank, open it on all. Collective: call on every rank."""
    if path is None:
        return None
    limit = Limit.of(config)
    scan_all = index_workers.Workers(path, find_recipe(config.recipe), loaded.processor, partial(measure_for_cache, limit)).when_worth_it()
    measure_row = partial(measure_for_cache, limit, recipe, loaded.processor)
    built = once(world, lambda: build_index(path, cache, f"{key} {limit}", measure_row, scan_all))
    return together(world, lambda: open_rows(path, cache, built))


@dataclass(frozen=True)
class Limit:
    """What is done with samples that are too long."""

    positions: int
    key: str
    """Of the config, that sets it."""
    too_long: str

    @classmethod
    def of(cls, config: Config) -> Limit:
        key = "train.micro_tokens" if config.data.sequence_length is None else "data.sequence_length"
        return cls(longest_sample(config), key, config.data.too_long)


def longest_sample(config: Config) -> int:
    return config.data.sequence_length or config.train.micro_tokens


def measure(config: Config, recipe: Recipe, processor: Any, row: dict[str, Any]) -> Measured:
    """How much of a row is trained on. Raises `UserError` for a bad row, and for one that is too long if that is an error."""
    return within(Limit.of(config), recipe, recipe.read(row, processor))


def measure_for_cache(limit: Limit, recipe: Recipe, processor: Any, row: dict[str, Any]) -> Measured:
    """As `measure`, with the record of the sample if any of it is trained on. A record holds the sample as `read` gave it, uncut."""
    sample = recipe.read(row, processor)
    found = within(limit, recipe, sample)
    return found if found.left_out else found._replace(sample=sample_cache.encode(sample))


def within(limit: Limit, recipe: Recipe, sample: Sample) -> Measured:
    positions = recipe.length(sample)
    if positions <= limit.positions:
        return Measured(positions)
    if limit.too_long == "drop":
        return Measured(0, left_out=f"longer than {limit.positions} positions")
    if limit.too_long == "error" or recipe.truncate is None:
        raise UserError(f"{positions} positions do not fit {limit.key}: {limit.positions}; raise it, or say data.too_long: drop")
    if not any(recipe.collate([recipe.truncate(sample, limit.positions)]).targets.values()):
        return Measured(0, left_out=f"nothing to learn in its first {limit.positions} positions")
    return Measured(limit.positions, cut=True)


def check_batching(config: Config, recipe: Recipe) -> None:
    """Refuse ways of batching that the recipe or other keys do not allow. Raises `UserError`."""
    data, micro_tokens = config.data, config.train.micro_tokens
    if data.packing and recipe.pack is None:
        raise UserError(f"data.packing: true, but samples of {config.recipe} cannot be laid end to end; drop it")
    if data.too_long == "truncate" and recipe.truncate is None:
        raise UserError(f"data.too_long: truncate, but a cut sample of {config.recipe} would teach something wrong; say drop")
    if longest_sample(config) > micro_tokens:
        raise UserError(
            f"data.sequence_length: {data.sequence_length} is more than a micro-batch may hold (train.micro_tokens: {micro_tokens}); "
            "raise train.micro_tokens"
        )


def account(rows: Rows) -> list[str]:
    """A line for each reason why rows of a file are trained on in part or not at all."""
    total = len(rows) + sum(map(len, rows.left_out.values()))
    lines = []
    for reason, left_out in rows.left_out.items():
        more = ", …" if len(left_out) > SHOWN_PROBLEMS else ""
        shown = ", ".join(map(str, left_out[:SHOWN_PROBLEMS]))
        lines.append(f"{rows.path}: left out {len(left_out):,} of {total:,} rows, {reason} (lines {shown}{more})")
    if rows.cut:
        lines.append(f"{rows.path}: cut {rows.cut:,} of {total:,} rows to their first positions")
    return lines
