"""Folders that all test processes of one pytest run share: what is dear to make, such as a trained model, is made once."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def share_folder(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder that `build(folder)` has filled, in whichever process of this run asked for `name` first. The others wait for it.

    Tests of another process may read the folder at any time: whoever wants to change what is in it copies it first. If the process that
    builds dies, or `build` raises, the next one that asks starts again with an empty folder.
    """
    common = find_common_folder(factory)
    folder, complete = common / name, common / f"{name}.complete"
    common.mkdir(exist_ok=True)
    with exclusive_lock(common / f"{name}.lock"):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            complete.touch()
    return folder


def find_common_folder(factory: pytest.TempPathFactory) -> Path:
    """Beside the base folders of xdist's workers; without xdist, in the base folder of this process."""
    base = factory.getbasetemp()
    is_worker = base.name == f"popen-{os.environ.get('PYTEST_XDIST_WORKER')}"  # a pytest that a worker starts inherits the variable
    return (base.parent if is_worker else base) / "shared"


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """The kernel releases it when this process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing would not release it while a forked child has the file open
