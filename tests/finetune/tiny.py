"""Tiny runs of the byte model, for the tests beside this file: rows, a base, a config, and what `assembly.build` makes of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config, resolve
from overtone.finetune.data.cached_samples import Rows
from overtone.finetune.data.dataset_opening import DataOpener
from overtone.finetune.data.row_measurement import LengthLimit
from overtone.finetune.distributed.process_group import World
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.recipe import Loaded, Recipe, find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.finetune.training import setup
from overtone.finetune.training.loop import Progress, fit
from overtone.finetune.training.step import Training
from tests import loopback
from tests.byte_model.recipe import write_base

FOLDER = Path(__file__).parents[1] / "byte_model"
RECIPE = load_recipe(find_recipe(str(FOLDER)))
FULL, LORA = (), (("model.lora", "{rank: 3, alpha: 6}"),)


def texts(count: int = 20, shortest: int = 3, longest: int = 40, seed: int = 0) -> list[str]:
    """Ragged texts of the given lengths in bytes."""
    random = np.random.default_rng(seed)
    return ["".join(map(chr, random.integers(97, 123, length))) for length in random.integers(shortest, longest + 1, count)]


def write_rows(path: Path, rows: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return path


def config_in(folder: Path, *overrides: tuple[str, str]) -> Config:
    """A run in `folder`/run on a base and on rows that stand in `folder` (made there if they are missing)."""
    base, data = folder / "base", folder / "train.jsonl"
    if not base.is_dir():
        write_base(base)
    if not data.is_file():
        write_rows(data, texts())
    own = (("run.dir", str(folder / "run")), ("model.source", str(base)), ("data.train", str(data)))
    return resolve(str(FOLDER), RECIPE.Options, [FOLDER / "config.yaml"], [*own, *overrides])


def state(step: int, **changes: Any) -> dict[str, Any]:
    """What `state.json` of a checkpoint holds, for tests that make one without training."""
    return {
        **{"format": checkpoint.FORMAT, "step": step, "recipe": str(FOLDER), "recipe_state": {}, "buffers": [], "lora": None},
        **{"data": {"digest": "mine", "rows": 20, "positions": 400, "sources": []}},
        **{"base": {"source": "base", "revision": None, "digest": "base", "files": {"config.json": "base"}}, "order": {"seed": 0}},
        **{"quantization": None, "optimizer": "adamw", "added": [], "experts": [], "base_distance": False},
        **{"place": {"epoch": 0, "window": 0, "micro": step}, "optimizer_steps": step, "skipped": 0, "recent": []},
        **{"validation_loss": None, "evaluation": {}, "best_by": None, "best_value": None, "stale_evaluations": 0, "validation": None},
        **{"world": 1, "strategy": "ddp", "device": "cpu", "sampling": None, "sample_due": False},
        **changes,
    }


def reseal(path: Path, **changes: Any) -> None:
    """Change keys of a checkpoint's `state.json` as somebody could who knows the format: its manifest fits again."""
    manifest = checkpoint.unseal((path / "manifest.json").read_bytes())
    data = json.dumps({**json.loads((path / "state.json").read_text()), **changes}).encode()
    (path / "state.json").write_bytes(data)
    manifest["files"]["state.json"] = {"bytes": len(data), "digest": files.digest(path / "state.json")}
    (path / "manifest.json").write_bytes(checkpoint.seal(manifest))


def let_go(run_dir: Path) -> None:
    """Close what holds the folder's lock, as the end of the process that trained in it would."""
    owner = run_dir / files.OWNER
    held = [int(each.name) for each in Path("/proc/self/fd").iterdir() if each.exists() and owner.exists() and each.samefile(owner)]
    for descriptor in held:
        os.close(descriptor)


def open_rows(path: Path, cache: Path, key: str, recipe: Recipe, loaded: Loaded, config: Config, world: World) -> Rows:
    """The rows of a file, as a run with this config opens them."""
    opener = DataOpener(
        cache=cache,
        key=key,
        recipe=recipe,
        folder=find_recipe(config.recipe),
        options=config.options,
        limit=LengthLimit.of(config.data, config.train),
        loaded=loaded,
        world=world,
    )
    return opener.open(path)


def built(world: World, config: Config) -> tuple[Training, Progress]:
    let_go(config.run.dir)
    return setup.build(config, RECIPE, world)


def trained(world: World, config: Config) -> tuple[Training, Progress]:
    """A run to its end (or on from its last checkpoint), committed under `run.dir`."""
    training, progress = built(world, config)
    saver = checkpoint.Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous)
    events = Events(config.run.dir, world.accelerator, training.total, progress.step, {})
    with StopRequests() as requests:
        progress, _ = fit(training, progress, events, saver, requests)
    saver.close()
    events.close()
    return training, progress


def ranks(script: str, count: int = 2) -> list[str]:
    """Standard output of each rank of a script, over gloo."""
    with started(script, count) as processes:
        outputs = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return outputs


@contextlib.contextmanager
def started(script: str, count: int = 2) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks of a script, over gloo. None goes on afterwards."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(loopback.free_port()), "WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=FOLDER.parents[1],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
