"""The options of the engine, and failures of batches. Clusters are in the tests of each recipe's `generate`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.data_prep.parallel import ray_pool
from overtone.data_prep.parallel.ray_pool import RayWorkers
from overtone.finetune.errors import UserError
from overtone.recipes.ray_generation import add_engine_options, explain_failures, open_engine, read_engine, run_batches


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_engine_options(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--workers", "2"], "--workers needs --engine ray"),
        (["--gpus-per-worker", "0"], "--gpus-per-worker needs --engine ray"),
        (["--ray-address", "auto"], "--ray-address needs --engine ray"),
        (["--engine", "ray", "--workers", "0"], "--workers 0: must be at least 1"),
        (["--engine", "ray", "--gpus-per-worker", "-1"], "--gpus-per-worker -1: must not be negative"),
        (["--engine", "ray", "--gpus-per-worker", "nan"], "--gpus-per-worker nan: must not be negative"),
    ],
)
def test_options_that_do_not_fit_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_engine(parsed(*argv))


def test_without_a_cluster_this_process_generates(tmp_path: Path) -> None:
    with open_engine(read_engine(parsed()), tmp_path, [tmp_path / "gone"]) as remote:
        assert remote is None and not [*tmp_path.iterdir()]


def test_a_missing_cluster_is_an_error_before_anything_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options = read_engine(parsed("--engine", "ray", "--ray-address", "127.0.0.1:1"))
    with pytest.raises(UserError, match=r"no Ray cluster at 127.0.0.1:1"), open_engine(options, tmp_path, []):
        raise AssertionError("it was opened")


def test_a_worker_has_the_threads_of_the_driver_and_a_stop_is_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has one thread here; a worker of Ray may have another number."""
    used: list[int] = []

    @contextmanager
    def make(number: int) -> Iterator[Callable[[str], str]]:
        used.append(torch.get_num_threads())
        yield str.upper

    def run_items(items: list[str], opened: Any, remote: RayWorkers, stop: Any) -> Iterator[tuple[int, str]]:
        torch.set_num_threads(2)
        with opened(0) as do:
            yield 0, do(items[0])
        stop.requested = True

    monkeypatch.setattr(ray_pool, "run_items", run_items)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = run_batches(["a", "b"], make, RayWorkers(1, 0.0, tmp_path))
    try:
        assert next(found) == (0, "A") and used == [1]
        with pytest.raises(KeyboardInterrupt):
            next(found)
    finally:
        torch.set_num_threads(before)


def test_failures_are_counted_and_each_reason_is_named_once() -> None:
    message = explain_failures(["out of memory", "out of memory", "its workers died"], 5, "text")
    assert message.startswith("5 texts could not be generated: out of memory; its workers died. The others are complete")


def test_the_options_need_no_torch() -> None:
    code = "import sys; import overtone.recipes.ray_generation; assert not {'torch', 'ray'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
