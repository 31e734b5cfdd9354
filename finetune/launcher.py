"""`overtone train --launch FILE`: accelerate's launcher in this process, with one message at the end instead of its log and traceback.

The ranks are those of `accelerate launch --config_file FILE finetune/train.py`. Imports no torch before the launch.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.finetune import command_lines
from overtone.finetune.config_sources import Arguments, read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import EXIT_RECORD, read_json

FLAG = "launch"
PASSED_ON = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port")
"""Flags of accelerate that may stand beside --launch."""
FLAGS = (FLAG, *PASSED_ON)
NUMBERS = tuple(key for key in PASSED_ON if key != "main_process_ip")
DEEPSPEED = "DEEPSPEED"
"""`distributed_type` of launch files for DeepSpeed."""


@dataclass(frozen=True)
class Launch:
    """Settings of --launch and the flags beside it."""

    file: Path
    settings: dict[str, Any]
    """Content of the file."""
    flags: list[str]
    """Flags of accelerate."""

    @property
    def is_single(self) -> bool:
        """True if the file describes one process."""
        return str(self.settings.get("distributed_type")) == "NO"

    @property
    def starts_processes(self) -> bool:
        """True if a launcher is needed: not for one process on the first GPU."""
        plain = self.settings.get("gpu_ids") in (None, "all") and not self.settings.get("use_cpu")
        return bool(self.flags) or not self.is_single or not plain

    def read_number(self, key: str) -> int | None:
        """Return a number of the flags, or else of the file, 1 by default; None for a word, such as `gpu`: one for each visible GPU."""
        given = dict(zip(self.flags[::2], self.flags[1::2], strict=True)).get(f"--{key}", self.settings.get(key, 1))
        return int(given) if str(given).isdecimal() else None


def take_launch(arguments: Arguments) -> Launch | None:
    """Remove --launch and the flags of accelerate from the arguments; None without --launch. Raises `UserError`."""
    given = {key: value for key, value in arguments.overrides if key in FLAGS}
    if not given:
        return None
    if "LOCAL_RANK" in os.environ:
        raise UserError(f"--{next(iter(given))}: this process is a rank of a launcher already; remove the flag, or the other launcher")
    if FLAG not in given:
        raise UserError(f"--{next(iter(given))} needs --{FLAG} FILE, as in --{FLAG} fsdp2 --num_processes 4")
    for key in NUMBERS:
        if key in given and not (given[key].isdecimal() and given[key].isascii()):
            raise UserError(f"--{key} {given[key]}: expected a number, as in --{key} 4")
    if given.get("num_processes", "1").strip("0") == "":
        raise UserError("--num_processes 0: a training needs a process; give 1 or more")
    arguments.overrides = [(key, value) for key, value in arguments.overrides if key not in given]
    file, flags = find_launch_file(given[FLAG]), [word for key in PASSED_ON if key in given for word in (f"--{key}", given[key])]
    settings = read_config_file(file).values
    if settings.get("distributed_type") == DEEPSPEED:
        raise UserError(f"--{FLAG} {file} {explain_deepspeed(file)}")
    found = Launch(file, settings, flags)
    if found.is_single and "num_processes" in given:
        raise UserError(f"--num_processes: {file} describes one process; for several give --{FLAG} ddp or --{FLAG} fsdp2")
    return found


def check_engine(environ: Mapping[str, str]) -> None:
    """Raises `UserError` in a rank that accelerate started for DeepSpeed."""
    if environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        raise UserError(f"the launch file {explain_deepspeed('FILE.yaml')}")


def explain_deepspeed(file: object) -> str:
    command = command_lines.overtone_command("translate", file, "--to", "FOLDER")
    return f"uses DeepSpeed; its ZeRO stages are parallel.strategy here. `{command}` writes a launch file and a config that do the same"


def find_launch_file(name: str) -> Path:
    """Return a launch file by its path, or the name of a shipped one, with .yaml or without. Raises `UserError`."""
    folder = command_lines.configs_folder()
    for path in (Path(name), folder / name, folder / f"{name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    raise UserError(f"--{FLAG} {name}: no such file, and no launch file of that name; known are {known}")


def launch(wanted: Launch, arguments: Sequence[str], run_dir: Path) -> int:
    """Train on the processes of a launch file, and wait for them; returns the exit code. `arguments`: those of the training.

    Raises `UserError` if the processes cannot be started.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    words = ["--config_file", str(wanted.file), *wanted.flags, *command_lines.training_script(), *arguments]
    before = read_change_time(run_dir)
    logging.disable(logging.ERROR)  # the launcher logs each signal and each exit code; the ranks say what happened
    try:
        launch_command(launch_command_parser().parse_args(words))
    except SignalException as stop:
        recorded = read_change_time(run_dir) != before  # otherwise the record is that of the launch before
        reason = str(read_json(run_dir / EXIT_RECORD).get("reason"))
        return 0 if recorded and reason.startswith("stopped") else 128 + int(stop.sigval)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        return report_failure(rank, failure.exitcode, run_dir)
    except subprocess.CalledProcessError as failed:  # of the one process that accelerate starts for `distributed_type: NO`
        return report_failure(0, failed.returncode, run_dir)
    except ValueError as error:
        hint = "; without GPUs give --num_processes N" if "Cuda is not available" in str(error) else ""
        raise UserError(f"--{FLAG} {wanted.file}: {str(error).rstrip('.')}{hint}") from None
    return 0


def report_failure(rank: int, code: int, run_dir: Path) -> int:
    """Report the first rank that failed, if it could not do so itself; returns the exit code."""
    if code == 2:  # a `UserError`, which the rank has printed
        return 2
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    record = run_dir / EXIT_RECORD
    raise UserError(
        f"rank {rank} ended with {how}; the reason is above, or in {record}. The same command resumes from the newest checkpoint"
    )


def read_change_time(run_dir: Path) -> int | None:
    """When exit.json was written, in nanoseconds; None without that file."""
    try:
        return (run_dir / EXIT_RECORD).stat().st_mtime_ns
    except OSError:
        return None
