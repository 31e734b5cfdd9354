"""Length index of a data file: every row is tokenized once before training, and dropped or truncated rows are counted and logged.

The samples that the recipe's `read` returns are stored in the sample cache, so training never calls it again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from finetune.config import Config, on_disk
from finetune.data import index_workers, referenced_file_changes, sample_serialization
from finetune.data.context_rows import EarlierRows, find_earlier_rows, read_with_context
from finetune.data.jsonl_dataset import Measured, Rows, build_index, open_rows
from finetune.data.mixture import MixedRows, name_sources, name_validation_sources
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
    versions = [f"{name} {_version(name)}" for name in loaded.libraries]
    return hashlib.sha256("\n".join([*chosen, *base, *versions, code_version(find_recipe(config.recipe))]).encode()).hexdigest()


def code_version(recipe: Path) -> str:
    """Digest of the source of this project and of the recipe in this folder, and of the versions of the libraries that read text."""
    libraries = " ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    outside = [] if recipe.is_relative_to(CODE[-1]) else digest_sources(recipe)
    return hashlib.sha256("\n".join([libraries, *_digest_own_sources(), *outside]).encode()).hexdigest()


@cache
def _digest_own_sources() -> list[str]:
    """Read once: a process runs the code that it has imported, and 500 files take a tenth of a second."""
    return [line for folder in CODE for line in digest_sources(folder)]


def digest_sources(folder: Path) -> list[str]:
    """Relative path and digest of each Python file below the folder."""
    return [f"{path.relative_to(folder)} {files.digest(path)}" for path in sorted(folder.rglob("*.py"))]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def download_data(config: Config, world: World) -> Config:
    """Download data files given as URLs to the run's cache; returns the config with their local paths. Collective: call on every rank."""
    cache = config.run.dir / "cache" / "elsewhere"
    data = config.data
    urls = dict.fromkeys(str(path) for path in (*data.training_files(), *data.validation_files()) if remote.is_url(path))
    brought: dict[str, str] = run_on_main(world, lambda: {url: str(remote.fetch(url, cache)) for url in urls})

    def localise(path: Path | str | None) -> Path | str | None:
        return Path(brought[str(path)]) if str(path) in brought else path

    mix = tuple(file.model_copy(update={"path": localise(file.path)}) for file in data.mix)
    val = tuple(map(localise, data.val)) if isinstance(data.val, tuple) else localise(data.val)
    here = {"train": localise(data.train), "mix": mix, "val": val}
    return config.model_copy(update={"data": data.model_copy(update=here)})


def open_data(path: Path | None, cache: Path, key: str, recipe: Recipe, loaded: Loaded, config: Config, world: World) -> Rows | None:
    """Index the file on one rank, open it on all. Collective: call on every rank."""
    if path is None:
        return None
    limit, folder = LengthLimit.of(config), data_folder(path)

    def build() -> str:
        encode = partial(encode_row, limit, folder, earlier=find_earlier_rows(path, recipe, config.options))
        scan_all = index_workers.IndexWorkers(path, find_recipe(config.recipe), loaded.processor, encode).choose_scan()
        return build_index(path, cache, f"{key} {limit} {folder}", partial(encode, recipe, loaded.processor), scan_all)

    built = run_on_main(world, build)
    return run_on_all(world, lambda: open_rows(path, cache, built))


def open_training_data(
    local: Config, cache: Path, key: str, recipe: Recipe, loaded: Loaded, config: Config, world: World
) -> Rows | MixedRows:
    """Index and open `data.train`, or the files of `data.mix`. `local`: the config with files that are on this machine. Collective: call on
    every rank."""
    opened = [open_data(on_disk(path), cache, key, recipe, loaded, config, world) for path in local.data.training_files()]
    found = [rows for rows in opened if rows is not None]
    if not config.data.mix:
        return found[0]
    mix = config.data.mix
    return run_on_all(world, lambda: MixedRows.mix(found, name_sources([file.path for file in mix]), [file.weight for file in mix]))


def open_validation_data(
    local: Config, cache: Path, key: str, recipe: Recipe, loaded: Loaded, config: Config, world: World
) -> Rows | MixedRows | None:
    """Index and open the file or files of `data.val`, which together contain each row once. `local`: as in `open_training_data`.
    Collective: call on every rank."""
    opened = [open_data(on_disk(path), cache, key, recipe, loaded, config, world) for path in local.data.validation_files()]
    found = [rows for rows in opened if rows is not None]
    if not isinstance(config.data.val, tuple):
        return found[0] if found else None
    names, shares = name_validation_sources(config.data.val), [len(rows) for rows in found]
    return run_on_all(world, lambda: MixedRows.mix(found, names, shares, "data.val"))


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


def data_folder(path: Path) -> Path:
    """The third argument of `read`: the folder of a data file. A link is not followed, since the files that rows name are beside it."""
    return path.absolute().parent


def measure_row(
    config: Config, recipe: Recipe, processor: Any, row: dict[str, Any], folder: Path, earlier: EarlierRows | None = None
) -> Measured:
    """Length of a row with its context. Raises `UserError` for an invalid row, and for a too long one under `data.too_long: error`."""
    return apply_limit(LengthLimit.of(config), recipe, read_with_context(recipe, processor, row, folder, earlier))


def encode_row(
    limit: LengthLimit, folder: Path, recipe: Recipe, processor: Any, row: dict[str, Any], earlier: EarlierRows | None = None
) -> Measured:
    """As `measure_row`, with the state of the files that the row names, and, unless the row is dropped, with the record of the sample
    before truncation."""
    named = tuple(referenced_file_changes.describe_files(recipe.files(row), folder))  # before they are read: a later change is then noticed
    sample = read_with_context(recipe, processor, row, folder, earlier)
    found = apply_limit(limit, recipe, sample)._replace(files=named)
    return found if found.left_out else found._replace(sample=sample_serialization.encode(sample))


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


def describe_dropped(rows: Rows | MixedRows) -> list[str]:
    """One log line for each reason for which rows of a file were dropped or truncated."""
    if isinstance(rows, MixedRows):
        return [line for source in rows.sources for line in describe_dropped(source)]
    total = len(rows) + sum(map(len, rows.left_out.values()))
    lines = []
    for reason, left_out in rows.left_out.items():
        more = ", …" if len(left_out) > SHOWN_PROBLEMS else ""
        shown = ", ".join(map(str, left_out[:SHOWN_PROBLEMS]))
        lines.append(f"{rows.path}: dropped {len(left_out):,} of {format_count(total, 'row')}, {reason} (lines {shown}{more})")
    if rows.cut:
        lines.append(f"{rows.path}: truncated {rows.cut:,} of {format_count(total, 'row')}")
    return lines
