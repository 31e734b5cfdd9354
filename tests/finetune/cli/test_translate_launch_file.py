"""`overtone translate`: what a stranger sees, the files that it writes, and a run of two ranks that trains with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from overtone.finetune.cli import translate_launch_file
from overtone.finetune.config import resolve
from overtone.recipes.llm_sft.options import Options

DEEPSPEED = {
    "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-4}},
    "riddle": 1,
}


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "my files" / "ds config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(DEEPSPEED), encoding="utf-8")
    return path


def test_every_key_is_listed_with_its_outcome(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert translate_launch_file.main([str(theirs)]) == 0
    shown = capsys.readouterr().out
    assert "DeepSpeed, 7 keys: 3 mapped, 1 not needed, 2 not there, 1 unknown" in shown
    for key in ("zero_optimization.stage: 2", "offload_optimizer.device: nvme", "nvme_path: /disk", "riddle: 1", "optimizer.params.lr"):
        assert key in shown
    assert "strategy: zero2" in shown and "--to FOLDER" in shown
    assert max(map(len, shown.splitlines()[1:])) <= translate_launch_file.WIDTH


def test_the_text_of_a_file_does_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "\x1b[2J": "\x1b]0;title\x07"}), encoding="utf-8")
    assert translate_launch_file.main([str(tmp_path / "ds.json")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and r"\x1b[2J: \x1b]0;title\x07" in shown


def test_the_files_are_a_launch_file_and_a_config(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = theirs.parent / "out"
    assert translate_launch_file.main([str(theirs), "--to", str(to), "--processes", "2"]) == 0
    assert f"--launch '{to / 'launch.yaml'}' --recipe llm_sft --config '{to / 'config.yaml'}'" in capsys.readouterr().out
    config = resolve("llm_sft", Options, [to / "config.yaml"], [])
    assert (config.parallel.strategy, config.train.lr, config.train.optimizer) == ("zero2", 2e-4, "adamw")
    launch = yaml.safe_load((to / "launch.yaml").read_text(encoding="utf-8"))
    assert (launch["distributed_type"], launch["num_processes"]) == ("FSDP", 2)


def test_nothing_is_replaced(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (theirs.parent / "config.yaml").write_text("mine", encoding="utf-8")
    assert translate_launch_file.main([str(theirs), "--to", str(theirs.parent)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (theirs.parent / "launch.yaml").exists() and (theirs.parent / "config.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone.json"], "gone.json does not exist (looked from"),
        (["{}", "--processes", "0"], "--processes 0: a positive number"),
        (["{}", "--sequence-length", "-5"], "--sequence-length -5: a positive number"),
    ],
)
def test_a_mistake_is_one_error(arguments: list[str], says: str, theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert translate_launch_file.main([word.format(theirs) for word in arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_file_with_comments_says_where_it_is_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 1} // why\n}', encoding="utf-8")
    assert translate_launch_file.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
