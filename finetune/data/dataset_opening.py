"""Opens the data files of a run on all ranks: downloads remote ones, indexes each on one rank, and reports dropped and truncated rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.config import Data, Train, on_disk
from overtone.finetune.data import index_workers
from overtone.finetune.data.cached_samples import Rows, open_rows
from overtone.finetune.data.context_rows import find_earlier_rows
from overtone.finetune.data.index_building import build_index
from overtone.finetune.data.mixture import MixedRows, name_sources, name_validation_sources
from overtone.finetune.data.row_measurement import LengthLimit, encode_row, longest_sample
from overtone.finetune.data.row_problems import SHOWN_PROBLEMS
from overtone.finetune.distributed.process_group import World, run_on_all, run_on_main
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.recipe import Loaded, Recipe
from overtone.finetune.storage import remote


def download_data(data: Data, cache: Path, world: World) -> Data:
    """Download data files given as URLs to the folder `cache`; returns the section with their local paths. Collective: call on every
    rank."""
    # Not by the address without its secrets: the query may choose one of several files.
    urls = {path.with_secrets: path for path in (*data.training_files(), *data.validation_files()) if isinstance(path, RemoteAddress)}
    brought: dict[str, str] = run_on_main(world, lambda: {key: str(remote.fetch(path, cache)) for key, path in urls.items()})

    def localise(path: Path | RemoteAddress | None) -> Path | RemoteAddress | None:
        return Path(brought[path.with_secrets]) if isinstance(path, RemoteAddress) else path

    mix = tuple(file.model_copy(update={"path": localise(file.path)}) for file in data.mix)
    val = tuple(map(localise, data.val)) if isinstance(data.val, tuple) else localise(data.val)
    return data.model_copy(update={"train": localise(data.train), "mix": mix, "val": val})


@dataclass(frozen=True)
class DataOpener:
    """Opens data files of a run: indexes each on one rank, and opens it on all. All methods are collective: call them on every rank."""

    cache: Path
    """Folder of the index."""
    key: str
    """Part of the index's name: `sample_cache_key.data_key`."""
    recipe: Recipe
    folder: Path
    """Folder of the recipe."""
    options: BaseModel
    """The recipe's options."""
    limit: LengthLimit
    loaded: Loaded
    world: World

    def open(self, path: Path) -> Rows:
        """Return the rows of one file."""
        folder, processor = data_folder(path), self.loaded.processor

        def build() -> str:
            encode = partial(encode_row, self.limit, folder, earlier=find_earlier_rows(path, self.recipe, self.options))
            scan_all = index_workers.IndexWorkers(path, self.folder, processor, encode).choose_scan()
            return build_index(path, self.cache, f"{self.key} {self.limit} {folder}", partial(encode, self.recipe, processor), scan_all)

        built = run_on_main(self.world, build)
        return run_on_all(self.world, lambda: open_rows(path, self.cache, built))

    def open_training(self, given: Data, local: Data) -> Rows | MixedRows:
        """Return the rows of `data.train`, or of the files of `data.mix`. `local`: the section `data` with files that are on this
        machine."""
        found = [self.open(path) for path in map(on_disk, local.training_files()) if path is not None]
        if not given.mix:
            return found[0]
        mix = given.mix
        return run_on_all(
            self.world, lambda: MixedRows.mix(found, name_sources([file.path for file in mix]), [file.weight for file in mix])
        )

    def open_validation(self, given: Data, local: Data) -> Rows | MixedRows | None:
        """Return the rows of the file or files of `data.val`, which together contain each row once. `local`: as in `open_training`."""
        found = [self.open(path) for path in map(on_disk, local.validation_files()) if path is not None]
        if not isinstance(given.val, tuple):
            return found[0] if found else None
        names, shares = name_validation_sources(given.val), [len(rows) for rows in found]
        return run_on_all(self.world, lambda: MixedRows.mix(found, names, shares, "data.val"))


def data_folder(path: Path) -> Path:
    """Return the folder of a data file, which is the third argument of `read`. A link to a file is not followed, since the files that rows
    name are beside the link."""
    return path.absolute().parent


def check_batching(data: Data, train: Train, name: str, recipe: Recipe) -> None:
    """Raises `UserError` for batching settings that the recipe, called `name`, or other keys do not allow."""
    if data.packing and recipe.pack is None:
        raise UserError(f"data.packing: true, but the recipe {name} does not support packing; remove it")
    if data.too_long == "truncate" and recipe.truncate is None:
        raise UserError(f"data.too_long: truncate, but the recipe {name} does not support truncation; use drop")
    if longest_sample(data, train) > train.micro_tokens:
        raise UserError(
            f"data.sequence_length: {data.sequence_length} is larger than a micro-batch (train.micro_tokens: {train.micro_tokens}); "
            "raise train.micro_tokens"
        )


def describe_dropped(rows: Rows | MixedRows) -> list[str]:
    """Return one log line for each reason for which rows of a file were dropped or truncated, and one for what of the others is not
    used."""
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
    if rows.unused:
        counts = ", ".join(f"{what} ({format_count(count, 'row')})" for what, count in rows.unused.items())
        lines.append(f"{rows.path}: not used: {counts}")
    return lines
