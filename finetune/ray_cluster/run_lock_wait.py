"""Waits for the lock of a run's folder, which a worker that Ray has ended may still hold."""

from __future__ import annotations

import os
import time
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files

RELEASE_SECONDS = 60.0
"""Seconds that the previous worker, which Ray has ended, may take to release the lock of the run's folder."""


def await_release(run_dir: Path) -> None:
    """Wait until the run's folder is unlocked: Ray does not wait for the processes that it ends. After `RELEASE_SECONDS`, training itself
    reports the owner of the lock."""
    deadline = time.monotonic() + RELEASE_SECONDS
    while time.monotonic() < deadline:
        try:
            os.close(files.lock_folder(run_dir))
        except UserError:
            time.sleep(1.0)
        else:
            return
