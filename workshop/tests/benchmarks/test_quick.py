"""The command that runs all benchmarks in a small setting distinguishes those that pass, fail, and cannot run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.finetune.training.waiting import ended, within
from workshop.benchmarks import _quick
from workshop.benchmarks._quick import Outcome, run_quick

TABLE = "import pathlib, sys\nassert sys.argv[1:3] == ['--quick', '--to']\npathlib.Path(sys.argv[3], 'mine.md').write_text('a table')\n"


def outcome_of(folder: Path, source: str, limit: float = 60) -> Outcome:
    (folder / "mine.py").write_text(source)
    return run_quick(folder / "mine.py", limit)


@pytest.mark.parametrize(
    ("source", "kind", "detail"),
    [
        (TABLE, "passed", ""),
        ("print('skipped: needs a GPU')", "skipped", "needs a GPU"),
        ("print('nothing to do')", "failed", "it wrote no mine.md and printed no reason\nnothing to do"),
        (f"{TABLE}raise SystemExit('the two ways differ')", "failed", "exit code 1\nthe two ways differ"),
        ("print('skipped: needs a GPU')\nraise SystemExit(3)", "failed", "exit code 3\nskipped: needs a GPU"),
        ("for number in range(100): print(number)\nraise SystemExit(1)", "failed", "\n".join(["exit code 1", *map(str, range(75, 100))])),
    ],
)
def test_table_exit_code_and_reason_decide_the_outcome(source: str, kind: str, detail: str, tmp_path: Path) -> None:
    found = outcome_of(tmp_path, source)
    assert (found.name, found.kind, found.detail) == ("mine", kind, detail)


def test_a_benchmark_that_hangs_is_killed_with_its_processes(tmp_path: Path) -> None:
    child = (
        "import subprocess, sys, time\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
    )
    found = outcome_of(tmp_path, f"{child}time.sleep(600)", limit=3)
    problem, process = found.detail.splitlines()
    assert found.kind == "failed" and problem == "not finished after 3 s"
    assert within(10, lambda: ended(int(process)))


def test_the_summary_names_what_did_not_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"good": TABLE.replace("mine", "good"), "bad": "raise SystemExit('it differs')", "on_gpu": "print('skipped: needs a GPU')"}
    for name, source in {**sources, "_part": "raise SystemExit(1)"}.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(_quick, "HERE", tmp_path)
    assert _quick.main([]) == 1
    assert capsys.readouterr().out.partition("\n\n")[2] == (
        "1 of 3 benchmarks passed\nskipped: on_gpu: needs a GPU\nfailed: bad: exit code 1\n"
    )
    assert _quick.main(["good", "on_gpu"]) == 0
    capsys.readouterr()
    assert _quick.main(["god"]) == 2 and capsys.readouterr().out == "god: no such benchmark; there are bad, good, on_gpu\n"
