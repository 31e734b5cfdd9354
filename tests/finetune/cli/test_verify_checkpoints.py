"""`overtone check` reads every checkpoint, reports from which the run can resume, and changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.cli import verify_checkpoints
from overtone.finetune.distributed.process_group import World
from overtone.finetune.storage import files
from tests.finetune import fork_server, tiny


@pytest.fixture
def run(tmp_path: Path, world: World) -> Path:
    val = (("data.val", str(tmp_path / "train.jsonl")), ("eval.every", "4"))
    tiny.trained(world, tiny.config_in(tmp_path, ("checkpoint.every", "2"), *val))
    tiny.let_go(tmp_path / "run")
    return tmp_path / "run"


def everything(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_all_checkpoints_of_a_valid_run_are_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(run)
    assert verify_checkpoints.main([str(run)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["step-00000006", "step-00000004", "step-00000002"]
    assert all("  valid: " in line and "saved by 1 × ddp" in line for line in lines)
    assert ["validation loss" in line for line in lines] == [True, True, False], "step 2 was not evaluated"
    assert verdict == "the run can resume from step-00000006"
    assert everything(run) == before


def test_damage_is_reported_and_sets_the_exit_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, middle, _ = checkpoint.list_checkpoints(run / "checkpoints")
    (newest / "state.json").unlink()
    shutil.copytree(middle, run / "checkpoints" / f".step-00000008{files.TEMPORARY}12")
    assert verify_checkpoints.main([str(run)]) == 2
    said = capsys.readouterr().out
    assert "step-00000006  damaged: files differ from the manifest: state.json\n" in said
    assert f".step-00000008{files.TEMPORARY}12  unfinished: a save in progress, or one that was killed" in said
    assert said.endswith("the run can resume from step-00000004\n")


def test_an_invalid_state_is_damage_and_its_key_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, middle, _ = checkpoint.list_checkpoints(run / "checkpoints")
    tiny.reseal(newest, strategy=["fsdp"])
    tiny.reseal(middle, step=6)
    assert verify_checkpoints.main([str(run)]) == 2
    said = capsys.readouterr().out
    assert "step-00000006  damaged: state.json cannot be read (strategy: Input should be a valid string (found ['fsdp']))\n" in said
    assert "step-00000004  damaged: state.json belongs to step 6\n" in said
    assert said.endswith("the run can resume from step-00000002\n")


def test_without_a_valid_checkpoint_the_run_cannot_resume(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        (path / "manifest.json").write_text("{}")
    assert verify_checkpoints.main([str(run)]) == 2
    assert capsys.readouterr().out.endswith("the run cannot resume: no checkpoint is valid\n")
    (tmp_path / "empty").mkdir()
    assert verify_checkpoints.main([str(tmp_path / "empty")]) == 2
    assert "empty contains no checkpoint; give the folder of a run" in capsys.readouterr().err
    assert verify_checkpoints.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such folder; give the folder of a run" in capsys.readouterr().err


def test_the_verb_runs_as_a_command(run: Path) -> None:
    done = fork_server.run_command("-m", "finetune", "check", run)
    assert done.returncode == 0 and done.stdout.endswith("the run can resume from step-00000006\n"), done.stderr
