"""Start of worker processes that do not run this program's main module again.

multiprocessing imports it in each process that it spawns. A script without `if __name__ == "__main__":` would there begin from its first
line, prepare its data once more, and fail where it starts processes. Imports no torch.
"""

from __future__ import annotations

import sys
from multiprocessing.process import BaseProcess
from types import ModuleType


def start_worker(process: BaseProcess) -> None:
    """Start a process, whose target and arguments must not be of the main module."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # has no file, so there is nothing to import
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
