"""What of a data file is trained on: every row is measured once, and what is left out or cut is known before the first step."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from finetune import files, remote
from finetune.config import Config
from finetune.errors import UserError
from finetune.recipe import Loaded, Recipe
from finetune.rows import SHOWN_PROBLEMS, Measured, Rows, build_index, open_rows
from finetune.world import World, once, together

DESCRIBING = ("*.json", "*.txt", "*.model", "**/*.jinja")
"""What of a base's files can change the length of a sample: configs, tokenizers, templates, and never the weights."""


def data_key(config: Config, loaded: Loaded) -> str:
    """Digest of all that lengths depend on besides the rows: the recipe, its options, what it derived, and how the base reads text.

    The weights have no part in it, so that a look at the data need not read them.
    """
    told = [config.recipe, config.options.model_dump_json(), json.dumps(loaded.state, sort_keys=True)]
    paths = sorted({path for pattern in DESCRIBING for path in loaded.base.glob(pattern)})
    return hashlib.sha256("\n".join([*told, *(f"{path.name} {files.digest(path)}" for path in paths)]).encode()).hexdigest()


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
    limit, too_long = longest_sample(config), config.data.too_long
    once(world, lambda: build_index(path, cache, f"{key} {limit} {too_long}", partial(measure, config, recipe, loaded.processor)))
    return together(world, lambda: open_rows(path, cache))


def longest_sample(config: Config) -> int:
    return config.data.sequence_length or config.train.micro_tokens


def measure(config: Config, recipe: Recipe, processor: Any, row: dict[str, Any]) -> Measured:
    """How much of a row is trained on. Raises `UserError` for a bad row, and for one that is too long if that is an error."""
    sample, limit, too_long = recipe.read(row, processor), longest_sample(config), config.data.too_long
    positions = recipe.length(sample)
    if positions <= limit:
        return Measured(positions)
    if too_long == "drop":
        return Measured(0, left_out=f"longer than {limit} positions")
    if too_long == "error" or recipe.truncate is None:
        key = "train.micro_tokens" if config.data.sequence_length is None else "data.sequence_length"
        raise UserError(f"{positions} positions do not fit {key}: {limit}; raise it, or say data.too_long: drop")
    if not any(recipe.collate([recipe.truncate(sample, limit)]).targets.values()):
        return Measured(0, left_out=f"nothing to learn in its first {limit} positions")
    return Measured(limit, cut=True)


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
