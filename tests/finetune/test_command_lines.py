"""Commands that are printed can be pasted: quoted, and valid where they are printed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from overtone.finetune import command_lines

ROOT = Path(__file__).parents[2]
FLAGS = ["--recipe", "voice_clone", "--model.lora", "{rank: 16}", "--data.train", "my data/train.jsonl"]


@pytest.fixture
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_lines, "_words_of_parent", lambda: ["bash"])


def test_commands_are_quoted_for_a_shell() -> None:
    printed = command_lines.export_command(Path("runs/my voice"), [], 40)
    assert printed == "overtone export 'runs/my voice' --step 40 --to 'exports/my voice'"
    assert shlex.split(command_lines.overtone_command("train", *FLAGS)) == ["overtone", "train", *FLAGS]
    outside = command_lines.export_command(Path("runs/me"), ["--recipe", "/my recipes/speech"])
    assert outside == "overtone export runs/me --to exports/me --recipe '/my recipes/speech'"


@pytest.mark.parametrize(
    ("own", "path", "printed"),
    [
        ("venv/bin", "venv/bin", "overtone ls"),
        ("venv/bin", "linked", "overtone ls"),
        ("venv/bin", "other/bin", "'my venvs/venv/bin/overtone' ls"),
        ("venv/bin", "nothing", "'my venvs/venv/bin/overtone' ls"),
        ("nothing", "other/bin", "overtone ls"),
        ("nothing", "nothing", "python -m overtone ls"),
    ],
)
def test_a_command_starts_the_overtone_of_this_environment(
    own: str, path: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name where a shell finds that one, by its path where a shell finds another one or none."""
    home = tmp_path / "my venvs"
    for folder in ("venv/bin", "other/bin", "linked", "nothing"):
        (home / folder).mkdir(parents=True)
    for folder in ("venv/bin", "other/bin"):
        (home / folder / "overtone").touch(mode=0o755)
    (home / "linked" / "overtone").symlink_to(home / "venv" / "bin" / "overtone")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(home / own / "python"))
    monkeypatch.setenv("PATH", str(home / path))
    assert command_lines.overtone_command("ls") == printed


def test_a_clone_launches_its_script_and_an_installed_copy_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = command_lines.launch_command(command_lines.launch_file("fsdp2.yaml"), [], FLAGS)
    start = "accelerate launch --config_file configs/fsdp2.yaml finetune/train.py --recipe voice_clone --model.lora '{rank: 16}' "
    assert printed == f"{start}--data.train 'my data/train.jsonl'"
    monkeypatch.chdir(tmp_path)
    assert f"--config_file {ROOT}/configs/fsdp2.yaml {ROOT}/finetune/train.py --recipe" in command_lines.launch_command(
        command_lines.launch_file("fsdp2.yaml"), [], FLAGS
    )
    package = tmp_path / "site packages" / "overtone" / "finetune"
    monkeypatch.setattr(command_lines, "PACKAGE", package)
    printed = command_lines.launch_command(command_lines.launch_file("fsdp2.yaml"), ["--num_processes", 2], FLAGS)
    assert printed.startswith(
        "accelerate launch --config_file 'site packages/overtone/configs/fsdp2.yaml' --num_processes 2 -m overtone.finetune.train"
    )


@pytest.mark.usefixtures("without_launcher")
@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["python", "-m", "finetune", "train"], ["python", "-m", "finetune", "train"]),
        (["python", "-m", "overtone", "train"], ["python", "-m", "overtone", "train"]),
        (["/opt/bin/python3.11", "-u", "finetune/train.py"], ["/opt/bin/python3.11", "-u", "finetune/train.py"]),
        (["/opt/bin/python", "/opt/bin/finetune", "train"], ["/opt/bin/finetune", "train"]),
        (["/opt/bin/python", "/opt/bin/overtone", "train"], ["/opt/bin/overtone", "train"]),
        (["python", "-m", "overtone.finetune.train"], ["python", "-m", "overtone.finetune.train"]),
    ],
)
def test_a_training_finds_its_own_command(words: list[str], typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", [*words, *FLAGS])
    assert command_lines.find_own_command() == shlex.join([*typed, *FLAGS])
    assert command_lines.find_own_arguments() == FLAGS


def test_the_command_of_the_launcher_comes_before_that_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = ["/opt/bin/python", "/opt/bin/accelerate", "launch", "--config_file", "a b.yaml", "finetune/train.py", *FLAGS]
    monkeypatch.setattr(command_lines, "_words_of_parent", lambda: launcher)
    monkeypatch.setattr(command_lines.shutil, "which", lambda name: f"/opt/bin/{name}")
    monkeypatch.setattr(sys, "orig_argv", ["/opt/bin/python", "-u", "finetune/train.py", *FLAGS])
    assert command_lines.find_own_command() == f"accelerate launch --config_file 'a b.yaml' finetune/train.py {shlex.join(FLAGS)}"


@pytest.mark.usefixtures("without_launcher")
@pytest.mark.parametrize(
    "words", [[], ["python", "-m", "pytest", "train"], ["python", "worker.py", "train"], ["python", "-m", "finetune", "plan"]]
)
def test_another_program_is_no_command_of_a_training(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", words)
    assert command_lines.find_own_command() is None and command_lines.find_own_arguments() is None


def test_a_parent_that_runs_something_else_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_lines, "_words_of_parent", lambda: ["python", "queue.py", "python", "-m", "finetune", "train", *FLAGS])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "finetune", "train", *FLAGS])
    assert command_lines.find_own_command() == f"python -m finetune train {shlex.join(FLAGS)}"
    assert command_lines._words_of_parent()[0] == "python"


def test_the_parent_of_this_process_is_read() -> None:
    assert command_lines._words_of_parent(), "a test runner or a shell"
