"""Tests of `overtone.recipes.demo_runner` with short commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from overtone.finetune import command_lines
from overtone.recipes import demo_runner


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_stages_run_in_order_in_an_emptied_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    home, seen = tmp_path / "demo", []
    home.mkdir()
    (home / "old.txt").touch()

    def finish(folder: Path, seconds: demo_runner.Seconds) -> int:
        seen.append((folder, list(seconds), (folder / "lines.txt").read_text(), (folder / "old.txt").exists()))
        return 5

    commands = {"first": python("print('one', __import__('os').environ['OMP_NUM_THREADS'])"), "second": python("print('two')")}
    assert demo_runner.run_demo(home, commands, finish, {"lines.txt": "a line\n"}) == 5
    assert seen == [(home, ["first", "second"], "a line\n", False)]
    printed = capfd.readouterr().out
    assert printed.index("$ python") < printed.index("one 1\n") < printed.index("two\n") and os.environ["OMP_NUM_THREADS"] == "1"


def test_the_demo_stops_at_the_first_stage_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    later = tmp_path / "later"
    commands = {"voice": python("raise SystemExit(3)"), "codes": python(f"import pathlib; pathlib.Path({str(later)!r}).touch()")}
    assert demo_runner.run_demo(tmp_path / "demo", commands, lambda *_: pytest.fail("finished")) == 3
    assert "the demo stopped at `voice` (exit code 3)" in capfd.readouterr().err and not later.exists()


def test_the_training_command_works_in_a_clone_and_in_an_installed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = demo_runner.training_command("cpu.yaml", ["--gpu_ids=-1"], ["--run.dir", tmp_path])
    assert command[1:3] == ["launch", "--config_file"] and Path(command[3]).is_file()
    assert command[4:] == ["--num_processes", "2", "--gpu_ids=-1", "finetune/train.py", "--run.dir", str(tmp_path)]
    monkeypatch.setattr(command_lines, "PACKAGE", tmp_path / "overtone" / "finetune")
    assert demo_runner.training_command("cpu.yaml", [], [])[6:] == ["-m", "overtone.finetune.train"]


def test_stages_are_timed_and_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 2.52, 10.0, 10.21])
    monkeypatch.setattr(demo_runner, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # other threads of this process read theirs
    seconds: demo_runner.Seconds = {}
    for stage in ("voice", "codes"):
        with demo_runner.time_stage(seconds, stage):
            pass
    assert demo_runner.add_total(seconds) == {"voice": 1.5, "codes": 0.2, "all": 1.7}


def test_the_result_lists_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    demo_runner.print_result("It works.", {"all figures": Path("runs/demo/summary.json")})
    assert capsys.readouterr().out == "\nIt works.\n  all figures       runs/demo/summary.json\n"
