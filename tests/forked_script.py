"""Scripts in a process that is forked from one which has torch imported, where nothing depends on a fresh interpreter."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from tests.launch.launching import ALONE
from tests.reliability import victims


def run_script(script: Path, arguments: list[object], folder: Path) -> tuple[int | None, str]:
    """Exit code and what it printed, from a process that works in `folder`."""
    printed = folder.with_name(f"{folder.name}.printed")
    codes = victims.wait([victims.begin(run_forked, script, [str(word) for word in arguments], folder, printed)], 200)
    return codes[0], printed.read_text(encoding="utf-8")


def run_forked(script: Path, arguments: list[str], folder: Path, printed: Path) -> None:
    victims.print_to(printed)
    os.environ.update(ALONE)
    os.chdir(folder)
    sys.argv = [str(script), *arguments]
    code: object = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
