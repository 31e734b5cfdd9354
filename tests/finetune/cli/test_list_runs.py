"""Tests of `overtone ls` as a user types it, on folders as runs and exports leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.cli import list_runs
from overtone.finetune.recipe import built_in_recipes
from tests.finetune.fork_server import run_command
from tests.finetune.monitoring.test_run_summary import step, write_log, write_status


def make_export(folder: Path, **facts: object) -> None:
    folder.mkdir(parents=True)
    (folder / "overtone.json").write_text(
        json.dumps({"recipe": "voice_clone", "format": "base", "checkpoint": "me/checkpoints/step-00000003", **facts})
    )
    (folder / "model.safetensors").write_bytes(bytes(2_500_000))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    run = write_log(tmp_path / "runs" / "me", step(0, "started", total=40), step(7, "evaluation", **{"val/loss": 2.5}), step(9, loss=1.0))
    (run / "exit.json").write_text(json.dumps({"reason": "stopped by SIGTERM"}))
    write_status(write_log(tmp_path / "runs" / "group" / "other", step(0, "started", total=3)))
    make_export(tmp_path / "exports" / "me")
    return tmp_path


def test_runs_exports_and_recipes_are_listed(home: Path) -> None:
    done = run_command("-m", "finetune", "ls", cwd=home, env={"PYTHONPATH": str(Path(__file__).parents[3])})
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "run recipe state step best evaluation size"
    assert lines[1].startswith("runs/group/other – running 0/3 – ")
    assert lines[2].startswith("runs/me – stopped (by SIGTERM) 9/40 loss 2.5000 at 7 ")
    assert lines[4:6] == ["export recipe format from size", "exports/me voice_clone base me/checkpoints/step-00000003 2.5 MB"]
    assert lines[7].startswith(f"recipes: {', '.join(built_in_recipes())} (")


def test_a_failed_run_without_a_reason_is_only_failed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs" / "me" / "exit.json").write_text(json.dumps({"reason": "failed"}))
    assert list_runs.main([str(home / "runs" / "me")]) == 0
    assert "failed" in (out := capsys.readouterr().out) and "failed (" not in out


def test_given_folders_are_listed_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_runs.main([str(home / "runs" / "me")]) == 0
    out = capsys.readouterr().out
    assert str(home / "runs" / "me") in out and "other" not in out and "no exports here" in out and "recipes:" not in out


def test_a_missing_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_runs.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such folder; without a folder" in capsys.readouterr().err


def test_links_out_of_the_folder_are_not_followed(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    make_export(outside / "secret")
    (home / "exports" / "link").symlink_to(outside)
    (home / "exports" / "loop").symlink_to(home)
    assert [folder.name for folder in list_runs.find_folders([home / "exports"])] == ["me"]


def test_names_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_export(tmp_path / "\x1b[2Ja\nb", format="\x1b]0;title\x07", recipe=["x"])
    assert list_runs.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\x1b[2Ja\\nb" in out and "\\x1b]0;title\\x07" in out


def test_listing_needs_no_torch(home: Path) -> None:
    code = f"import sys; from overtone.finetune.cli import list_runs; list_runs.main([{str(home)!r}]); assert 'torch' not in sys.modules"
    done = run_command("-c", code, fresh=("torch",))
    assert done.returncode == 0, done.stderr
