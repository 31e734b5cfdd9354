"""Runs the demos of the recipes: a user's commands in order, timed, until the first failure; then it prints the result.

Each demo has its own commands and measurements. All its files are in one folder, which is emptied first.
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

from pydantic import JsonValue

from overtone.finetune.command_lines import configs_folder, training_script
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_diagnostic, print_line

Seconds = dict[str, float]
"""Stage → its duration."""
SUMMARY = "summary.json"
"""File with the figures, in the demo's folder."""


def run_demo(
    home: Path, commands: Mapping[str, list[str]], finish: Callable[[Path, Seconds], int], inputs: Mapping[str, str] | None = None
) -> int:
    """Empty the folder `home`, write `inputs` (path in it → text), run the commands in order, and then `finish(home, seconds)`.

    Returns the exit code: of the first command that fails, or of `finish`, which measures and prints the result.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes with several threads each would be ten times slower
    if home.exists():
        files.discard(home)
    for name, text in (inputs or {}).items():
        files.write_text(home / name, text)
    seconds: Seconds = {}
    for stage, command in commands.items():
        print_line(f"\n$ {shlex.join([Path(command[0]).name, *command[1:]])}")
        with time_stage(seconds, stage):
            done = subprocess.run(command, check=False)
        if done.returncode != 0:
            print_diagnostic(f"error: the demo stopped at `{stage}` (exit code {done.returncode}); its output is above")
            return done.returncode
    return finish(home, seconds)


def training_command(launch_file: str, launch_options: Sequence[str], options: Sequence[object]) -> list[str]:
    """`accelerate launch` of finetune/train.py with two processes, by a launch file in configs/."""
    launcher = shutil.which("accelerate", path=str(Path(sys.executable).parent)) or "accelerate"
    launch = [launcher, "launch", "--config_file", configs_folder() / launch_file, "--num_processes", "2", *launch_options]
    return [str(word) for word in (*launch, *training_script(), *options)]


@contextlib.contextmanager
def time_stage(seconds: Seconds, stage: str) -> Iterator[None]:
    """Record the duration of the body in `seconds`, rounded to a tenth."""
    began = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - began, 1)


def summarize_training(run: Path) -> dict[str, JsonValue]:
    """From the log of a run: the number of `steps`, and the `loss` of the `first` and the `last` one and of the last `validation`."""
    events = read_log(run / LOG)
    steps = [event for event in events if event["event"] == "step"]
    validation = [event["val/loss"] for event in events if event["event"] == "evaluation"]
    return {"steps": steps[-1]["step"], "loss": {"first": steps[0]["loss"], "last": steps[-1]["loss"], "validation": validation[-1]}}


def add_total(seconds: Seconds) -> Seconds:
    """The seconds of each stage, and their sum as `all`."""
    return {**seconds, "all": round(sum(seconds.values()), 1)}


def print_result(text: str, places: Mapping[str, object]) -> None:
    """Print the result, and below it one line for each place: a title, and a path or command."""
    print_line(f"\n{text}")
    for title, place in places.items():
        print_line(f"  {title:<18}{place}")
