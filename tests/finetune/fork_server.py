"""Ranks and commands as processes of the fork server, which has torch and the other packages imported: a start costs tenths of a second."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest  # noqa: F401 - each rank whose function is in a test module would import it

from tests import loopback
from tests.reliability import victims

ROOT = Path(__file__).parents[2]
SERVER = victims.SERVER
SERVER.set_forkserver_preload([__name__])
SECONDS = 240
"""Limit on each process."""
OWN_PACKAGES = ("overtone", "finetune", "data_prep", "recipes", "tests")


def run_ranks(count: int, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of `target(*arguments)` on `count` ranks over gloo, in the order of the ranks. `target` must be importable. Raises
    `AssertionError` with the traceback of a rank that fails."""
    port = loopback.free_port()
    results = dict[int, Any]()
    with contextlib.ExitStack() as stack:
        pending = dict[Any, int]()
        for rank in range(count):
            receiver, sender = SERVER.Pipe(duplex=False)
            stack.enter_context(_started(_run_rank, sender, rank, count, port, target, arguments))
            sender.close()  # otherwise the end of the rank would not close the pipe
            pending[receiver] = rank
        while pending:
            ready = wait([*pending], timeout=SECONDS)
            assert ready, f"the ranks {sorted(pending.values())} did not end within {SECONDS} seconds"
            for receiver in ready:
                rank = pending.pop(receiver)
                results[rank] = _receive(receiver, rank)  # type: ignore[arg-type]
    return [results[rank] for rank in range(count)]


def run_command(
    *command: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT, fresh: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """What `python *command` does ("-m" and a module, "-c" and a program, or a script; and their arguments), with its output as text.

    The modules of this repository and of the packages in `fresh` are imported anew, as in a new interpreter; other packages are there.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryDirectory() as folder:
        with _started(_run_command, words, dict(os.environ if env is None else env), cwd, fresh, Path(folder)) as process:
            process.join(SECONDS)
            code = process.exitcode
        out, err = ((Path(folder) / name).read_text() if (Path(folder) / name).exists() else "" for name in ("stdout", "stderr"))
    assert code is not None, f"{words} did not end within {SECONDS} seconds: {out}{err}"
    return subprocess.CompletedProcess(words, code, out, err)


@contextlib.contextmanager
def _started(target: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    victims.start_server()
    process = SERVER.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _receive(receiver: Connection, rank: int) -> Any:
    try:
        failed, result = receiver.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} ended without a result") from None
    assert not failed, f"rank {rank} failed:\n{result}"
    return result


# --- inside the process


def _run_rank(sender: Connection, rank: int, count: int, port: int, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    victims.take_rank(rank, count, port)
    signal.alarm(SECONDS)  # the end of a rank that waits for one that is gone, if the test is gone too
    try:
        answer = (False, target(*arguments))
    except BaseException:
        answer = (True, traceback.format_exc())
    sender.send(answer)


def _run_command(words: list[str], env: dict[str, str], cwd: Path, fresh: tuple[str, ...], folder: Path) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]  # a command is no worker of another process
    for name in [*sys.modules]:
        if name.startswith("outside_recipe_") or name.partition(".")[0] in (*OWN_PACKAGES, *fresh):
            del sys.modules[name]
    first, *rest = words
    given = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    own = str(cwd) if first in ("-m", "-c") else str(Path(first).parent)
    sys.path[:] = [own, *given, *(folder for folder in sys.path if folder and Path(folder) != ROOT)]
    sys.argv = words if first not in ("-m", "-c") else [first, *rest[1:]]
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")
