"""What the demos of the recipes share: run a user's commands in order, time them, stop at the first that fails, and print the result.

Each demo has its own commands and its own measurements. What each leaves is in one folder, which is emptied first.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from finetune.cli.paths import configs_folder
from finetune.storage import files

Seconds = dict[str, float]
"""Stage → how long it took."""
SUMMARY = "summary.json"
"""In the demo's folder: its figures."""


def run_demo(
    home: Path, commands: Mapping[str, list[str]], finish: Callable[[Path, Seconds], int], inputs: Mapping[str, str] | None = None
) -> int:
    """Empty the folder `home`, write `inputs` (path in it → text), run the commands by stage, and then `finish(home, seconds)`.

    Returns the exit code: of the first command that fails, or of `finish`, which measures and prints the result.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes with several threads each would slow each other down tenfold
    if home.exists():
        files.discard(home)
    for name, text in (inputs or {}).items():
        files.write_text(home / name, text)
    seconds: Seconds = {}
    for stage, command in commands.items():
        print(f"\n$ {shlex.join([Path(command[0]).name, *command[1:]])}", flush=True)
        with timed(seconds, stage):
            done = subprocess.run(command, check=False)
        if done.returncode != 0:
            print(f"error: the demo stopped at `{stage}` (exit code {done.returncode}); its output is above", file=sys.stderr)
            return done.returncode
    return finish(home, seconds)


def training_command(launch_file: str, launch_options: Sequence[str], options: Sequence[object]) -> list[str]:
    """`accelerate launch` of finetune/train.py in two processes, with a launch file of configs/."""
    launcher = shutil.which("accelerate", path=str(Path(sys.executable).parent)) or "accelerate"
    launch = [launcher, "launch", "--config_file", configs_folder() / launch_file, "--num_processes", "2", *launch_options]
    script = ["finetune/train.py"] if Path("finetune/train.py").is_file() else ["-m", "finetune.train"]  # a clone, or an installed copy
    return [str(word) for word in (*launch, *script, *options)]


@contextlib.contextmanager
def timed(seconds: Seconds, stage: str) -> Iterator[None]:
    """Add to `seconds` how long the body took, to a tenth."""
    began = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - began, 1)


def with_total(seconds: Seconds) -> Seconds:
    """The seconds of the stages, and of `all` of them."""
    return {**seconds, "all": round(sum(seconds.values()), 1)}


def print_result(text: str, places: Mapping[str, object]) -> None:
    """Print what the demo achieved, and where to find what it made: a title and a path or command for each."""
    print(f"\n{text}")
    for title, place in places.items():
        print(f"  {title:<18}{place}")
