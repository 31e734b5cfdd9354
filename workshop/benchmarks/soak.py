"""A long run with everything at once: memory, file descriptors, threads, disk and step time must stay as they were.

Two ranks train CSM and save every few steps, evaluate, generate samples, and copy each checkpoint to an S3 server; a speech server beside
them answers requests. `--minutes N` sets the length (default 60).
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.storage import files
from tests import loopback
from tests.reliability.object_storage import BUCKET, Server
from workshop.benchmarks import _table
from workshop.benchmarks._seeded_trials import command_line, make_inputs

ROOT = Path(__file__).resolve().parents[2]
PLOT = ROOT / "workshop" / "lab_book" / "soak.png"
LOOK_SECONDS, ASK_SECONDS = 2.0, 3.0
COLUMNS = ("quantity", "processes", "second quarter", "last quarter", "last / second")
SAVE_EVERY, EVALUATE_EVERY, SAMPLE_EVERY = 25, 100, 400
"""Steps."""


@dataclass
class Observation:
    """Resources of a group of processes at one moment."""

    seconds: float
    """Since the start."""
    processes: int
    resident_mib: float
    descriptors: int
    threads: int
    cpu_seconds: float
    """Since each process started. Other programs on the machine slow a step down, but hardly add to its CPU time."""


@dataclass
class Series:
    """Observations of the training processes that last, of the server, and of the run's folder."""

    began_at: float = 0.0
    """Unix time; the moments in all lists are seconds since then."""
    training: list[Observation] = field(default_factory=list)
    serving: list[Observation] = field(default_factory=list)
    disk_mib: list[tuple[float, float]] = field(default_factory=list)
    answers: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds until the whole answer had come)."""
    refused: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="one minute, to see that it runs; its figures say little")
    parser.add_argument("--to", type=Path, default=_table.RESULTS, metavar="FOLDER", help="where the table is written")
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the training (default %(default)g)")
    given = parser.parse_args()
    minutes = 1.0 if given.quick else given.minutes
    with tempfile.TemporaryDirectory() as folder:
        series, code = soak(Path(folder), minutes)
        steps = read_steps(Path(folder) / "run", series.began_at)
        events = [event["event"] for event in read_log(Path(folder) / "run" / "log.jsonl")]
    plot = PLOT if given.to == _table.RESULTS else given.to / PLOT.name
    files.write_bytes(plot, draw(series, steps))
    counted = ", ".join(f"{events.count(kind):,} {kind} events" for kind in sorted(set(events)))
    note = (
        f"{minutes:g} minutes, {len(steps):,} steps, exit code {code}. Events of the run: {counted}. Requests to the server: "
        f"{len(series.answers):,} answered, {series.refused:,} refused. Each figure is a median over a quarter of the time; the first "
        "quarter is left out, in which processes start and caches fill. Memory is resident memory."
    )
    _table.publish("soak", _table.Flags(given.quick, given.to), COLUMNS, make_rows(series, steps, minutes), note)
    return code


def soak(folder: Path, minutes: float) -> tuple[Series, int]:
    """Train for so long beside a server, and observe both; the exit code of the training."""
    given = {
        **make_inputs("csm", folder),
        **{"run.dir": folder / "run", "run.deadline_minutes": minutes, "train.steps": 10_000_000},
        **{"checkpoint.every": SAVE_EVERY, "checkpoint.keep": 3, "data.val": folder / "train.jsonl", "eval.every": EVALUATE_EVERY},
        **{"sample.every": SAMPLE_EVERY, "sample.prompts": '["ann|She counted the boats."]', "log.trackers": "[tensorboard]"},
    }
    series, storage = Series(), Server(loopback.free_port())
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{storage.port}", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    words = [
        "train",
        "--launch",
        "cpu",
        "--num_processes",
        "2",
        *command_line("csm", {**given, "checkpoint.copy_to": f"s3://{BUCKET}/soak"}),
    ]
    try:
        with serving(folder, environment) as (url, server):
            series.began_at, began = time.time(), time.monotonic()
            training = subprocess.Popen([sys.executable, "-m", "finetune", *words], cwd=ROOT, env=environment, stdout=sys.stderr)
            asking = threading.Thread(target=keep_asking, args=(url, training, series, began))
            asking.start()
            try:
                while training.poll() is None:
                    observe(series, training, server, folder / "run", time.monotonic() - began)
                    time.sleep(LOOK_SECONDS)
            finally:
                end(training)  # else it would train on in a folder that is removed
                asking.join()
    finally:
        storage.end()
    return series, training.returncode


@contextlib.contextmanager
def serving(folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A speech server of the base on a free port; its address and process."""
    port = loopback.free_port()
    words = [sys.executable, "-m", "finetune", "serve", "--model", str(folder / "base"), "--recipe", "csm", "--port", str(port)]
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=sys.stderr)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(0.5)
        yield url, process
    finally:
        process.terminate()
        process.wait(60)


def end(training: subprocess.Popen[bytes]) -> None:
    """End the launcher and its ranks, if they have not ended."""
    training.terminate()
    try:
        training.wait(60)
    except subprocess.TimeoutExpired:
        training.kill()
        training.wait()


def keep_asking(url: str, training: subprocess.Popen[bytes], series: Series, began: float) -> None:
    """Ask the server for speech every few seconds while the training runs."""
    number = 0
    while training.poll() is None:
        body = {"model": "base", "voice": str(number % 2), "input": f"Number {number}.", "response_format": "flac", "seed": number}
        request = urllib.request.Request(f"{url}/v1/audio/speech", json.dumps(body).encode(), {"Content-Type": "application/json"})
        asked = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert len(answer.read()) > 44
            series.answers.append((asked - began, time.monotonic() - asked))
        except OSError as error:
            print(f"request {number}: {error}", file=sys.stderr, flush=True)
            series.refused += 1
        number += 1
        time.sleep(ASK_SECONDS)


def observe(series: Series, training: subprocess.Popen[bytes], server: subprocess.Popen[bytes], run: Path, seconds: float) -> None:
    """Add an observation of each group."""
    with contextlib.suppress(psutil.Error):
        launcher = psutil.Process(training.pid)
        ranks = [process for process in launcher.children(recursive=True) if "finetune/train.py" in " ".join(process.cmdline())]
        group = [process for process in ranks if not is_short_lived(process, ranks)]
        series.training.append(measure(seconds, [launcher, *group]))
        series.serving.append(measure(seconds, [psutil.Process(server.pid)]))
    series.disk_mib.append((seconds, sum(map(size_of, iterate_files(run))) / 2**20))


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it has just been removed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_short_lived(process: psutil.Process, ranks: list[psutil.Process]) -> bool:
    """Return whether a process is a child of a rank, as those that generate samples are."""
    return process.parent() in ranks


def measure(seconds: float, processes: list[psutil.Process]) -> Observation:
    """The sums over processes."""
    return Observation(
        seconds,
        len(processes),
        sum(process.memory_info().rss for process in processes) / 2**20,
        sum(process.num_fds() for process in processes),
        sum(process.num_threads() for process in processes),
        sum(sum(process.cpu_times()[:2]) for process in processes),  # user and system
    )


def iterate_files(folder: Path) -> Iterator[Path]:
    """Files of a folder that changes meanwhile: checkpoints, which must not pile up, without the logs, which grow."""
    for parent, _, names in os.walk(folder / "checkpoints"):  # unlike rglob, it passes over a folder that has just been removed
        yield from (Path(parent, name) for name in names)


def read_steps(run: Path, began_at: float) -> list[tuple[float, float]]:
    """(seconds from `began_at` to its end, seconds of the step) of each step."""
    steps = [event for event in read_log(run / "log.jsonl") if event["event"] == "step"]
    return [(event["time"] - began_at, event["tokens"] / event["tokens_per_second"]) for event in steps]


def cpu_seconds_per_event(observations: list[Observation], events: list[float]) -> list[tuple[float, float]]:
    """(middle of a window, CPU seconds of the processes in it per event that ended in it) for windows of a sixtieth of the time.

    A window in which the number of processes changed has no figure: their CPU seconds would not continue.
    """
    ended, size = sorted(events), max(2, len(observations) // 60)
    found = []
    for first, last in zip(observations[::size], observations[size::size], strict=False):
        count = bisect.bisect_right(ended, last.seconds) - bisect.bisect_right(ended, first.seconds)
        if count and first.processes == last.processes:
            found.append(((first.seconds + last.seconds) / 2, (last.cpu_seconds - first.cpu_seconds) / count))
    return found


def make_rows(series: Series, steps: list[tuple[float, float]], minutes: float) -> list[list[object]]:
    """The table: the second and the last quarter of the time."""
    quarter = 15 * minutes
    rows: list[list[object]] = []

    def add(quantity: str, processes: str, values: list[tuple[float, float]], form: str) -> None:
        second, last = (
            [value for moment, value in values if begin * quarter <= moment < (begin + 1) * quarter] for begin in (1, 3)
        )  # in seconds
        if second and last:
            early, late = statistics.median(second), statistics.median(last)
            rows.append([quantity, processes, form.format(early), form.format(late), f"{late / early:.3f}" if early else "–"])

    for processes, found in (("launcher and 2 ranks", series.training), ("server", series.serving)):
        add("memory, MiB", processes, [(one.seconds, one.resident_mib) for one in found], "{:.0f}")
        add("file descriptors", processes, [(one.seconds, one.descriptors) for one in found], "{:.0f}")
        add("threads", processes, [(one.seconds, one.threads) for one in found], "{:.0f}")
    add("checkpoints on disk, MiB", "–", series.disk_mib, "{:.2f}")
    add("seconds of a step", "2 ranks", steps, "{:.4f}")
    add("CPU seconds per step", "launcher and 2 ranks", cpu_seconds_per_event(series.training, [ended for ended, _ in steps]), "{:.4f}")
    add("seconds of an answer", "server", series.answers, "{:.3f}")
    answers = [asked + seconds for asked, seconds in series.answers]
    add("CPU seconds per answer", "server", cpu_seconds_per_event(series.serving, answers), "{:.3f}")
    return rows


def draw(series: Series, steps: list[tuple[float, float]]) -> bytes:
    """PNG with the memory of both groups, the file descriptors, the checkpoints on disk, and the seconds and CPU seconds of a step."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes: Any = figure.subplots(2, 2)
    panels: dict[str, dict[str, Any]] = {
        "memory, MiB": {
            "launcher and 2 ranks": [(one.seconds, one.resident_mib) for one in series.training],
            "server": [(one.seconds, one.resident_mib) for one in series.serving],
        },
        "file descriptors": {
            "launcher and 2 ranks": [(one.seconds, one.descriptors) for one in series.training],
            "server": [(one.seconds, one.descriptors) for one in series.serving],
        },
        "checkpoints on disk, MiB": {"": series.disk_mib},
        "per step": {
            "seconds (median of 50)": [
                (steps[at][0], statistics.median(one for _, one in steps[at : at + 50])) for at in range(0, max(1, len(steps) - 50), 50)
            ],
            "CPU seconds, launcher and 2 ranks": cpu_seconds_per_event(series.training, [ended for ended, _ in steps]),
        },
    }
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=True):
        for name, values in lines.items():
            axis.plot([moment / 60 for moment, _ in values], [value for _, value in values], label=name, linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("minutes", fontsize=8)
        if len(lines) > 1:
            axis.legend(fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
