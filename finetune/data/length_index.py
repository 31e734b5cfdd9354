"""Length index of a data file: every row is tokenized once before training, and dropped or truncated rows are counted and logged.

The samples that the recipe's `read` returns are stored in the sample cache, so training never calls it again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from finetune.config import Config
from finetune.data import index_workers, sample_cache
from finetune.data.jsonl_dataset import Measured, Rows, build_index, open_rows
from finetune.data.row_problems import SHOWN_PROBLEMS
from finetune.distributed.process_group import World, run_on_all, run_on_main
from finetune.errors import UserError, format_count
from finetune.recipe import Loaded, Recipe, Sample, find_recipe
from finetune.storage import files, remote

DESCRIBING = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.codes", "**/*.jinja")
"""Files of a base that can affect a sample: configs, tokenizers and templates, but not weights."""
CODE = tuple(Path(__file__).resolve().parents[2] / name for name in ("finetune", "data_prep", "recipes"))
"""Folders of this project's own code."""
LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "jinja2", "sentencepiece", "tiktoken", "mistral_common")
"""Distributions whose version can affect how a row is read."""


def data_key(config: Config, loaded: Loaded) -> str:
    """Digest of everything that samples depend on besides the rows: the recipe, its options and state, the base's tokenizer files, and the
    code.

    It does not include the weights, so `finetune plan --show-batch` need not read them.
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


def download_data(config: Config, world: World) -> Config:
    """Download data files given as URLs to the run's cache; returns the config with their local paths. Collective: call on every rank."""
    cache = config.run.dir / "cache" / "elsewhere"
    urls = {key: url for key in ("train", "val") if remote.is_url(url := getattr(config.data, key))}
    brought = run_on_main(world, lambda: {key: str(remote.fetch(url, cache)) for key, url in urls.items()})
    return config.model_copy(update={"data": config.data.model_copy(update={key: Path(path) for key, path in brought.items()})})


def open_data(path: Path | None, cache: Path, key: str, recipe: Recipe, loaded: Loaded, config: Config, world: World) -> Rows | None:
    """Index the file on one rank, open it on all. Collective: call on every rank."""
    if path is None:
        return None
    limit = LengthLimit.of(config)
    scan_all = index_workers.IndexWorkers(path, find_recipe(config.recipe), loaded.processor, partial(encode_row, limit)).choose_scan()
    measure_row = partial(encode_row, limit, recipe, loaded.processor)
    built = run_on_main(world, lambda: build_index(path, cache, f"{key} {limit}", measure_row, scan_all))
    return run_on_all(world, lambda: open_rows(path, cache, built))


@dataclass(frozen=True)
class LengthLimit:
    """Maximum length of a sample, and how to handle longer ones."""

    positions: int
    key: str
    """Config key that sets the length."""
    too_long: str

    @classmethod
    def of(cls, config: Config) -> LengthLimit:
        key = "train.micro_tokens" if config.data.sequence_length is None else "data.sequence_length"
        return cls(longest_sample(config), key, config.data.too_long)


def longest_sample(config: Config) -> int:
    return config.data.sequence_length or config.train.micro_tokens


def measure_row(config: Config, recipe: Recipe, processor: Any, row: dict[str, Any]) -> Measured:
    """Length of a row, and whether it is dropped or truncated. Raises `UserError` for an invalid row, and for one that is too long under
    `data.too_long: error`."""
    return apply_limit(LengthLimit.of(config), recipe, recipe.read(row, processor))


def encode_row(limit: LengthLimit, recipe: Recipe, processor: Any, row: dict[str, Any]) -> Measured:
    """As `measure_row`, with the record of the sample unless it is dropped. The record contains the sample before truncation."""
    sample = recipe.read(row, processor)
    found = apply_limit(limit, recipe, sample)
    return found if found.left_out else found._replace(sample=sample_cache.encode(sample))


def apply_limit(limit: LengthLimit, recipe: Recipe, sample: Sample) -> Measured:
    positions = recipe.length(sample)
    if positions <= limit.positions:
        return Measured(positions)
    if limit.too_long == "drop":
        return Measured(0, left_out=f"longer than {limit.positions} positions")
    if limit.too_long == "error" or recipe.truncate is None:
        raise UserError(f"{positions} positions do not fit {limit.key}: {limit.positions}; raise it, or set data.too_long: drop")
    if not any(recipe.collate([recipe.truncate(sample, limit.positions)]).targets.values()):
        return Measured(0, left_out=f"no training targets in the first {limit.positions} positions")
    return Measured(limit.positions, cut=True)


def check_batching(config: Config, recipe: Recipe) -> None:
    """Raises `UserError` for batching settings that the recipe or other keys do not allow."""
    data, micro_tokens = config.data, config.train.micro_tokens
    if data.packing and recipe.pack is None:
        raise UserError(f"data.packing: true, but the recipe {config.recipe} does not support packing; remove it")
    if data.too_long == "truncate" and recipe.truncate is None:
        raise UserError(f"data.too_long: truncate, but the recipe {config.recipe} does not support truncation; use drop")
    if longest_sample(config) > micro_tokens:
        raise UserError(
            f"data.sequence_length: {data.sequence_length} is larger than a micro-batch (train.micro_tokens: {micro_tokens}); "
            "raise train.micro_tokens"
        )


def describe_dropped(rows: Rows) -> list[str]:
    """One log line for each reason for which rows of a file were dropped or truncated."""
    total = len(rows) + sum(map(len, rows.left_out.values()))
    lines = []
    for reason, left_out in rows.left_out.items():
        more = ", …" if len(left_out) > SHOWN_PROBLEMS else ""
        shown = ", ".join(map(str, left_out[:SHOWN_PROBLEMS]))
        lines.append(f"{rows.path}: dropped {len(left_out):,} of {format_count(total, 'row')}, {reason} (lines {shown}{more})")
    if rows.cut:
        lines.append(f"{rows.path}: truncated {rows.cut:,} of {format_count(total, 'row')}")
    return lines
