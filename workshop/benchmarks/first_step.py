"""Time from a clone to the first optimizer step, stage by stage, in the two demos of the README."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _table

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"demo-llm": ".venv-chat", "demo": ".venv"}
"""Target of make → the environment that it installs."""
ENDS = {"preparation": "$ accelerate launch", "launch to first step": "step 1/"}
"""Stage of a demo → beginning of the line that ends it."""
COLUMNS = ("target", "stage", "seconds", "of all")
NOTE = (
    "By the clock, once. The environment comes from pip: torch's CUDA build is several GB, so the network decides; here it is the CPU "
    "build, {from_where}. `make demo` prepares by hearing nine minutes of recordings with a Whisper, and by coding the clips; both demos "
    "train in two processes on a CPU."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "overtone"
        cloned = timed(["git", "clone", "--quiet", str(ROOT), str(clone)], Path(folder))
        rows = []
        for target in ["demo-llm"] if flags.quick else ENVIRONMENTS:
            installed = {"clone": cloned, "environment": install(target, clone, flags.quick)}
            rows += table(target, {**installed, **stages(target, clone)})
    from_where = "which was there before" if flags.quick else "from an index on the same machine or near it"
    _table.publish("first_step", flags, COLUMNS, rows, NOTE.format(from_where=from_where))


def install(target: str, clone: Path, borrowed: bool) -> float:
    """Seconds until the environment of a target is installed; none if it is the one of this checkout."""
    environment = ENVIRONMENTS[target]
    if borrowed:
        (clone / environment).symlink_to(ROOT / environment)
        return 0.0
    return timed(["make", f"{environment}/.installed"], clone)


def timed(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    return time.monotonic() - began


def stages(target: str, clone: Path) -> dict[str, float]:
    """Seconds of each of `ENDS`; then the demo is stopped."""
    began, found = time.monotonic(), dict[str, float]()
    command = ["make", "-o", f"{ENVIRONMENTS[target]}/.installed", target]  # the environment is there, whatever the times of its files say
    process = subprocess.Popen(
        command, cwd=clone, env={**os.environ, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    printed = list[str]()
    for stage, beginning in ENDS.items():
        for line in process.stdout:
            printed.append(line)
            if line.startswith(beginning):
                found[stage], began = time.monotonic() - began, time.monotonic()
                break
    os.killpg(process.pid, signal.SIGTERM)  # which accelerate passes on to the ranks, in sessions of their own
    printed += process.stdout  # until the last of them has closed it
    process.wait()
    if len(found) < len(ENDS):
        raise SystemExit(f"make {target} ended before its first step:\n{''.join(printed[-20:])}")
    return found


def table(target: str, seconds: dict[str, float]) -> list[list[object]]:
    """A line for each stage, and one for all."""
    whole = sum(seconds.values())
    return [[f"make {target}", stage, f"{each:.1f}", f"{each / whole:.0%}"] for stage, each in {**seconds, "all": whole}.items()]


if __name__ == "__main__":
    main()
