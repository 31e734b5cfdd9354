"""Time until the first output: help, or a mistake in the config, compared with the start of Python and the import of torch."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _table

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["-m", "overtone", "train", "--recipe", "voice_clone"]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import pydantic, yaml": ["-c", "import pydantic, yaml"],
    "overtone": ["-m", "overtone"],
    "overtone train --recipe voice_clone --help": [*TRAIN, "--help"],
    "overtone voice --help": ["-m", "overtone", "voice", "--help"],
    "a misspelt key": [*TRAIN, "--train.lrr", "1"],
    "a file that is missing": [*TRAIN, "--data.train", "no/such.jsonl"],
    "import torch": ["-c", "import torch"],
    "import torch, transformers, accelerate": ["-c", "import torch, transformers, accelerate"],
}
COLUMNS = ("command", "processor time, ms", "of import torch")
NOTE = (
    "Medians of {rounds} starts each, in turns; user and system time of one process on a CPU, files in the cache of the disk. "
    "What has no torch in it must take a fraction of what torch takes: that is the promise, the milliseconds are of one machine."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    rounds = 1 if flags.quick else 7
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for name in [*COMMANDS] + list(COMMANDS) * rounds:  # the first of each fills the cache
            taken[name].append(processor_seconds(COMMANDS[name], folder))
    seconds = {name: median(values[1:]) for name, values in taken.items()}
    rows = [[f"`{name}`", f"{1000 * value:.0f}", f"{value / seconds['import torch']:.2f}"] for name, value in seconds.items()]
    _table.publish("start_up", flags, COLUMNS, rows, NOTE.format(rounds=rounds))


def processor_seconds(arguments: list[str], folder: str) -> float:
    """Return the processor seconds of a fresh interpreter that runs outside of the repository."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(arguments)} failed, so its time says nothing:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
