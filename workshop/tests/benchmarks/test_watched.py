"""A process whose work fails ends, although its memory is being watched."""

from __future__ import annotations

import json
from pathlib import Path

from tests.finetune import fork_server
from tests.launch.launching import ALONE, ROOT


def run(work: str, folder: Path) -> tuple[int, str]:
    script = folder / "script.py"
    script.write_text(f"from workshop.benchmarks import _watched; _watched.report_peak(lambda: {work})", encoding="utf-8")
    done = fork_server.run_command(script, cwd=folder, env={**ALONE, "PYTHONPATH": str(ROOT)})
    return done.returncode, done.stdout + done.stderr


def test_the_peak_is_above_the_memory_before_the_work(tmp_path: Path) -> None:
    code, printed = run("[bytes(1000) for _ in range(100_000)]", tmp_path)
    found = json.loads(printed)
    assert code == 0 and found["above_imports"] > 50e6 and found["looks"] > 1


def test_a_failure_ends_the_process(tmp_path: Path) -> None:
    code, printed = run("1 / 0", tmp_path)
    assert code == 1 and "ZeroDivisionError" in printed
