"""Every verb prints its help; arguments and exit codes pass through. The list of verbs: test_verb_dispatch.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.__main__ import VERBS, main

ROOT = Path(__file__).parents[2]


def finetune(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "finetune", *argv], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_exists_and_prints_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([verb, "--help"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 0 and len(capsys.readouterr().out) > 60
    assert len(VERBS) >= 4


def test_the_exit_code_of_the_verb_is_that_of_the_process() -> None:
    done = finetune("train", "--recipe", "nothing")
    assert done.returncode == 2 and done.stderr.startswith("error: --recipe nothing: no recipe.py")
    assert finetune("where", "cpu.yaml").stdout == f"{ROOT / 'configs' / 'cpu.yaml'}\n"


def test_arguments_reach_the_verb_unchanged() -> None:
    done = finetune("generate", "--model", "a folder with spaces")
    assert done.returncode == 2 and "--model a folder with spaces: no such folder, and not a hub name" in done.stderr
