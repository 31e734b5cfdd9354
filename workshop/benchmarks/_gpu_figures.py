"""The figures of gpu.py: what each part measures, in a process of its own that is watched, kept in a file as they come, and as tables.

usage, by gpu.py: _gpu_figures.py PART WORK DESCRIPTOR dry|full FIGURE…: measures these figures and writes an event a line to the descriptor
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.storage import files
from workshop.benchmarks._gpu import ROOT, Bench, circumstances, one_line
from workshop.benchmarks._table import NOT_YET

PARTS = ("facts", "smoke", "recipes", "chat", "voice", "speech", "serving", "saving")
"""Each is a module `_gpu_NAME` with a `PART`."""
MINUTES = 9.0
"""Maximum minutes of a part."""
PATIENCE, PATIENCE_DRY = 3.0, 30.0
"""A figure is stopped after so many times the seconds that it is expected to take on an H100."""
START = 20.0
"""Seconds until a process of Python has imported torch and transformers, as expected."""
MODELS = "its models"
"""Stands for the preparation of a part where the name of a figure stands otherwise."""
NOTHING = "–"

Cells = Sequence[object]


@dataclass(frozen=True)
class Figure:
    """A figure, which is measured, and may fail, by itself."""

    name: str
    seconds: float
    """Expected on an H100."""
    measure: Callable[[Bench], Sequence[Cells]]
    """Rows of the table."""
    dry: bool = True
    """True if a dry run measures it."""


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    figures: tuple[Figure, ...]
    note: str


@dataclass(frozen=True)
class Part:
    tables: tuple[Table, ...]
    prepare: Callable[[Bench], object]
    """Makes the models, unless they are there."""
    preparing: float
    """Seconds, expected."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(figure for table in self.tables for figure in table.figures)

    @property
    def expected(self) -> float:
        """Seconds of the whole part."""
        return START + self.preparing + sum(figure.seconds for figure in self.figures)


@dataclass(frozen=True)
class Found:
    """Result of a figure."""

    figure: str
    rows: list[list[str]]
    failed: str | None
    """The first line of its error; None if it was measured."""
    seconds: float
    circumstances: dict[str, str]


def part_named(name: str) -> Part:
    """By its name; or by the name of a module with a `PART`."""
    return importlib.import_module(name if "." in name else f"workshop.benchmarks._gpu_{name}").PART


def measure_part(name: str, to: Path, work: Path, dry: bool) -> list[str]:
    """Measure what is missing of a part, within its minutes; returns the names of the figures that are missing afterwards.

    A process that dies, or stands still, takes one figure along and no more.
    """
    part, here, began = part_named(name), circumstances(dry), time.monotonic()
    record = Record(to / f"gpu-{name}.jsonl", here)
    wanted = [figure for figure in part.figures if figure.dry or not dry]
    standing = record.standing()
    todo = [figure for figure in wanted if figure.name not in standing]
    print(f"== {name}: {len(wanted) - len(todo)} of {len(wanted)} figures are there; about {part.expected:.0f} s for all", flush=True)
    over = began + 60 * MINUTES * (PATIENCE_DRY / PATIENCE if dry else 1)
    while todo and time.monotonic() < over:
        tried = set(watch(name, part, todo, work, dry, over, record))
        if not tried or MODELS in tried:
            break
        todo = [figure for figure in todo if figure.name not in tried]
    standing = record.standing()
    missing = [figure.name for figure in wanted if figure.name not in standing]
    if missing:
        print(f"   not measured: {', '.join(missing)}; the same command again tries them", flush=True)
    print(f"   {name}: {time.monotonic() - began:.0f} s", flush=True)
    return missing


class Record:
    """Figures of a part in a file, one a line; a later line about a figure replaces an earlier one."""

    def __init__(self, path: Path, here: dict[str, str]) -> None:
        self.path, self.here = path, here

    def add(self, figure: str, rows: Sequence[Cells], failed: str | None, seconds: float) -> None:
        found = {"figure": figure, "rows": [[str(cell) for cell in row] for row in rows], "failed": failed, "seconds": round(seconds, 1)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_off = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut_off + json.dumps({**found, "circumstances": self.here}, ensure_ascii=False) + "\n")
        for row in rows or [[figure, f"FAILED: {failed}" if failed else "made"]]:
            print("   " + " | ".join(str(cell) for cell in row), flush=True)

    def standing(self) -> set[str]:
        """Names of the figures that were measured in the same circumstances."""
        here = next((each for each in read_record(self.path) if next(iter(each.values())).circumstances == self.here), {})
        return {figure for figure, found in here.items() if not found.failed and figure != MODELS}


def read_record(path: Path) -> list[dict[str, Found]]:
    """The last line about each figure, by figure, for each set of circumstances. A line that a kill cut off is dropped."""
    found: dict[tuple[tuple[str, str], ...], dict[str, Found]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            one = Found(**json.loads(line))
        except ValueError:
            continue
        found.setdefault(tuple(sorted(one.circumstances.items())), {})[one.figure] = one
    return list(found.values())


def watch(name: str, part: Part, todo: Sequence[Figure], work: Path, dry: bool, over: float, record: Record) -> Iterator[str]:
    """Names of what one process has measured or failed at, each as soon as it is recorded. `over`: when the part's time is spent."""
    patience = PATIENCE_DRY if dry else PATIENCE
    limits = {MODELS: patience * (START + part.preparing)} | {figure.name: patience * figure.seconds for figure in todo}
    process, events = start(name, todo, work, dry)
    current: str | None = MODELS  # None: between two figures
    since = time.monotonic()
    try:
        while True:
            until = min(over, since + (patience * START if current is None else limits[current]))
            try:
                event = events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                spent = f"stopped after {time.monotonic() - since:.0f} s" + (": the part's minutes are over" if until == over else "")
                if current is not None:
                    record.add(current, [], spent, time.monotonic() - since)
                    yield current
                return
            if event is None:
                if current is not None:
                    record.add(current, [], f"its process ended with {process.wait()}: {last_line(work / f'{name}.log')}", 0.0)
                    yield current
                return
            if "begin" in event:
                current, since = event["begin"], time.monotonic()
                continue
            assert current is not None
            record.add(current, event["rows"], event["failed"], time.monotonic() - since)
            if current != MODELS:
                yield current
            current, since = None, time.monotonic()
    finally:
        end(process)


def start(name: str, todo: Sequence[Figure], work: Path, dry: bool) -> tuple[subprocess.Popen[bytes], queue.Queue[Any]]:
    """A process that measures, and its events; None once it has ended. What it prints goes to WORK/NAME.log."""
    reading, writing = os.pipe()
    command = [sys.executable, __file__, name, work, writing, "dry" if dry else "full", *(figure.name for figure in todo)]
    threads = os.environ.get("OMP_NUM_THREADS", "1" if dry else "4")
    settings = {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    work.mkdir(parents=True, exist_ok=True)
    with (work / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command], env={**os.environ, **settings}, cwd=ROOT,
            stdout=log, stderr=log, pass_fds=(writing,), start_new_session=True,
        )  # fmt: skip
    os.close(writing)
    events: queue.Queue[Any] = queue.Queue()

    def read() -> None:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                events.put(json.loads(line))
        events.put(None)

    threading.Thread(target=read, daemon=True).start()
    return process, events


def last_line(log: Path) -> str:
    return next((line for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()) if line.strip()), "")[:200]


def end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started, which may have sessions of its own."""
    import psutil

    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def publish(to: Path, dry: bool) -> str:
    """Write gpu.md from the figures that are in the folder; returns its text."""
    command = f"`.venv/bin/python workshop/benchmarks/gpu.py{' --dry' if dry else ''}`"
    text = "\n\n".join([command, *(section(name, read_record(to / f"gpu-{name}.jsonl")) for name in PARTS)]) + "\n"
    files.write_text(to / "gpu.md", text)
    return text


def section(name: str, records: Sequence[Mapping[str, Found]]) -> str:
    """A part's tables: one for each set of circumstances. A figure that failed has a row with its reason."""
    lines = [f"### {name}"]
    for table in part_named(name).tables:
        measured = [found for record in records if (found := [record[figure.name] for figure in table.figures if figure.name in record])]
        for found in measured or [[]]:
            rows = [row for one in found for row in one.rows or [failure(one, table)]]
            cells = [table.columns, ["---"] * len(table.columns), *rows]
            lines.append("\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in cells))
            lines.append(f"{table.note} {about(found[0]) if found else f'{NOT_YET}: it needs a CUDA GPU.'}")
    failed = [record[MODELS] for record in records if MODELS in record and record[MODELS].failed]
    lines += [f"Its models could not be made: {one.failed}. {about(one)}" for one in failed]
    return "\n\n".join(lines)


def failure(found: Found, table: Table) -> list[str]:
    return [found.figure, f"failed: {found.failed}", *[NOTHING] * (len(table.columns) - 2)]


def about(found: Found) -> str:
    """Return where a figure comes from."""
    return "On " + ", ".join(found.circumstances.values()) + "."


def main() -> None:
    """Run the process that measures."""
    name, work, descriptor, sizes, *names = sys.argv[1:]
    part, bench = part_named(name), Bench(Path(work), dry=sizes == "dry")
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as events:

        def report(event: Mapping[str, object]) -> None:
            events.write(json.dumps(event, ensure_ascii=False) + "\n")
            events.flush()

        part.prepare(bench)
        report({"rows": [], "failed": None})  # of the models, in place of an earlier failure
        for figure in (figure for figure in part.figures if figure.name in names):
            report({"begin": figure.name})
            try:
                rows = [[str(cell) for cell in row] for row in figure.measure(bench)]
                report({"rows": rows, "failed": None})
            except Exception as problem:  # out of memory, a package that is missing: the others are measured all the same
                report({"rows": [], "failed": one_line(problem)})
            bench.clear()
    bench.leave()


if __name__ == "__main__":
    main()
