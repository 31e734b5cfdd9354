"""Real runs of several ranks, to be killed: a parent that has everything imported forks them, so a start costs tenths of a second.

A victim writes what it printed to `said-RANK.log` and the rows of every step to `rows-RANK.jsonl`, both in its witness folder.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import peft  # noqa: F401 - adapters import it late: once here instead of seconds in each rank
import torch

from overtone.finetune import train
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.exporting import export
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.storage import files
from overtone.finetune.training import loop
from overtone.finetune.training import run as training_run
from overtone.finetune.training.step import Training
from tests import loopback
from tests.finetune import tiny

ROOT = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Fault:
    """What befalls one rank's disk operations under `checkpoints/` (or all of them, for an export)."""

    rank: int = 0
    number: int = 10**9
    """Which operation, from 0."""
    last: int = 0
    """How many after it befalls it too."""
    error: int | None = None
    """errno to raise; without one the process dies by SIGKILL."""
    torn: bool = False
    """Before dying, leave half of what the operation is about: a file that was not synced yet, a folder that was to be removed."""
    within: str = "checkpoints"
    largest_file: int | None = None
    """Bytes of the kernel's own limit on a file (RLIMIT_FSIZE)."""


def start(witness: Path, size: int, argv: list[str], fault: Fault | None = None) -> list[ForkServerProcess]:
    """The ranks of a run of `overtone train` with these arguments."""
    witness.mkdir(parents=True, exist_ok=True)
    port = loopback.free_port()
    return [begin(train_rank, rank, size, port, witness, argv, fault) for rank in range(size)]


def start_server() -> None:
    """Start the fork server, unless it runs, so that it imports this tree: Python 3.11's does not take over the parent's `sys.path`, and
    in another working folder it would import an installed copy."""
    with contextlib.chdir(ROOT), mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):
        forkserver.ensure_running()


def begin(target: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    start_server()
    process = SERVER.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def wait(ranks: list[ForkServerProcess], seconds: float = 100) -> list[int | None]:
    """Exit codes, once all have ended. Processes that have not ended after `seconds` are killed."""
    deadline = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    kill(ranks)
    return [process.exitcode for process in ranks]


def kill(ranks: list[ForkServerProcess]) -> int:
    """SIGKILL to all that live; returns how many did."""
    alive = [process for process in ranks if process.is_alive()]
    for process in alive:
        process.kill()
    for process in ranks:
        process.join()
    return len(alive)


def finish(witness: Path, size: int, argv: list[str]) -> None:
    """Run to the end."""
    codes = wait(start(witness, size, argv))
    assert codes == [0] * size, said(witness)


def said(witness: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(witness.glob("said-*.log")))


# --- inside the victim


def become(rank: int, size: int, port: int, witness: Path) -> None:
    """Take the place of a rank, and print into the witness folder."""
    take_rank(rank, size, port)
    print_to(witness / f"said-{rank}.log")


def take_rank(rank: int, size: int, port: int) -> None:
    """Take the place that a launcher would give to this process."""
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in launched.items()}, ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    os.chdir(ROOT)


def print_to(path: Path) -> None:
    """From now on what this process prints is appended to this file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False, buffering=1), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115


def train_rank(rank: int, size: int, port: int, witness: Path, argv: list[str], fault: Fault | None) -> None:
    become(rank, size, port, witness)
    draw_no_curve()
    note_rows(witness / f"rows-{rank}.jsonl")
    with befallen(rank, witness, fault):
        code = train.main(argv)
    sys.stdout.flush()
    os._exit(code)


def export_once(witness: Path, run: Path, target: Path, fault: Fault | None) -> None:
    become(0, 1, 0, witness)
    with befallen(0, witness, fault):
        export.export(run, target, recipe=str(tiny.FOLDER))
    os._exit(0)


def draw_no_curve() -> None:
    """Leave out loss.png, which costs rank 0 as much as the run (tests/finetune/test_train.py has a run that draws it)."""
    training_run.draw_curve = lambda *_: None


def send_signal(name: str) -> None:
    """Send a signal to this process, and return when it is recorded; a second one ends the process instead."""
    recorded, record = threading.Event(), StopRequests.record_signal

    def noted(requests: StopRequests, received: str) -> None:
        record(requests, received)
        recorded.set()

    StopRequests.record_signal = noted  # type: ignore[method-assign]
    os.kill(os.getpid(), signal.Signals[name])
    assert recorded.wait(60), f"{name} was not recorded"


def note_rows(path: Path) -> None:
    """Write down what each step trains on, before it does."""
    step = loop.train_step

    def noted(training: Training, turns: list[Any], number: int, *rest: Any) -> dict[str, float]:
        with path.open("a") as file:
            file.write(json.dumps([number, [turn.micro.ids for turn in turns if turn.counts]]) + "\n")
        return step(training, turns, number, *rest)

    loop.train_step = noted


@contextlib.contextmanager
def befallen(rank: int, witness: Path, fault: Fault | None) -> Any:
    """Operations are counted; those with the fault's numbers fail or are the process's last. Each is written down in `fate-RANK`."""
    fault = fault or Fault()
    if fault.largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.largest_file, fault.largest_file))
    lock, seen = threading.Lock(), []

    def strike(operation: str, path: Path) -> None:
        if fault.within not in str(path):
            return
        with lock:  # the saver's thread writes too
            number = len(seen)
            seen.append(operation)
            with (witness / f"fate-{rank}").open("a") as file:
                file.write(f"{number} {operation} {path}\n")
            if fault.rank == rank and fault.number <= number <= fault.number + fault.last:
                with (witness / f"struck-{rank}").open("a") as file:
                    file.write(f"{number} {operation} {path}\n")
                if fault.error is not None:
                    raise OSError(fault.error, os.strerror(fault.error))
                if fault.torn:
                    tear(operation, path)
                os.kill(os.getpid(), signal.SIGKILL)

    with files.watch(strike):
        yield


def tear(operation: str, path: Path) -> None:
    """Half of what was not synced yet, or of what is being removed."""
    if operation == "sync" and path.is_file():
        os.truncate(path, path.stat().st_size // 2)
    if operation == "remove" and path.is_dir():
        sorted(path.iterdir())[0].unlink()


# --- what a run left


def struck(witness: Path) -> list[str]:
    """Operations that the fault befell."""
    return [line for path in sorted(witness.glob("struck-*")) for line in path.read_text().splitlines()]


def operations(witness: Path, rank: int = 0) -> list[str]:
    """Operations of one rank, in order."""
    return [line.split(" ")[1] for line in (witness / f"fate-{rank}").read_text().splitlines()]


def rows(witness: Path) -> dict[int, list[Any]]:
    """Rows by step, over all ranks and all attempts; a step that was redone with other rows fails here."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(witness.glob("rows-*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # torn by a kill
                step, ids = json.loads(line)
                assert found.setdefault(step, {}).setdefault(path.name, ids) == ids, (step, path)
    return {step: [ids for _, ids in sorted(of_ranks.items())] for step, of_ranks in sorted(found.items())}


def losses(run: Path) -> list[tuple[int, float, float]]:
    """(step, loss, gradient norm), by step; a step that was redone with another loss fails here."""
    found: dict[int, tuple[float, float]] = {}
    for line in (run / "log.jsonl").read_text().splitlines():
        with contextlib.suppress(ValueError):  # torn by a kill
            event = json.loads(line)
            if event["event"] == "step":
                numbers = (event["loss"], event["grad_norm"])
                assert found.setdefault(event["step"], numbers) == numbers, event
    return [(step, *numbers) for step, numbers in sorted(found.items())]


def weights(run: Path) -> dict[str, str]:
    """Digest of every rank's file of the newest good checkpoint."""
    newest, _ = checkpoint.find_newest_valid(run)
    assert newest is not None
    listed = checkpoint.unseal((newest / "manifest.json").read_bytes())["files"]
    return {newest.name: "", **{name: entry["digest"] for name, entry in listed.items() if name.endswith(".safetensors")}}


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_log(run / "log.jsonl") if event["event"] == kind]


def arguments(folder: Path, *overrides: object) -> list[str]:
    """The command line of a run of the byte model on data in `folder` (made there if it is missing)."""
    tiny.config_in(folder)
    own = ["--recipe", tiny.FOLDER, "--model.source", folder / "base", "--data.train", folder / "train.jsonl"]
    return [str(part) for part in [*own, *overrides]]
