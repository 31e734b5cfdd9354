"""No module is ever loaded under two names, whichever way a command is started: two copies would have two sets of classes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.finetune import tiny

ROOT = Path(__file__).parents[1]
STARTED = """
import json, os, runpy, sys
from pathlib import Path

def stop(code):
    raise SystemExit(code)

os._exit = stop  # train.py ends by it, past the lines below
start, sys.argv = sys.argv[1], sys.argv[1:]
sys.path[0] = os.getcwd() if start != "finetune/train.py" else os.path.abspath("finetune")
try:
    runpy.run_path(start, run_name="__main__") if start.endswith(".py") else runpy.run_module(start, run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
names = {}
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and Path(file).resolve().is_relative_to(os.getcwd()) and "site-packages" not in file:
        names.setdefault(str(Path(file).resolve()), []).append(name)
print(json.dumps([code, names]))
"""
"""Runs a module or a script as the interpreter would, then prints its exit code and file → the names that it was loaded under."""


def run(*command: str) -> tuple[int, dict[str, list[str]]]:
    done = subprocess.run([sys.executable, "-c", STARTED, *command], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.stdout, done.stderr
    code, names = json.loads(done.stdout.splitlines()[-1])
    return code, names


def listed_twice(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """Files with two names, without the package that `python -m` imports to find its `__main__.py`."""
    bare = {str(ROOT / package / "__init__.py") for package in ("finetune", "data_prep")}
    return {file: found for file, found in names.items() if len(found) > 1 and file not in bare}


@pytest.mark.parametrize(
    "command",
    [
        ("finetune", "train", "--recipe", "voice_clone", "--help"),
        ("finetune", "ls"),
        ("data_prep", "voice", "--help"),
        ("overtone.recipes.llm_sft.toy_chats", "--help"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_loads_each_module_under_one_name(command: tuple[str, ...]) -> None:
    _, names = run(*command)
    assert len(names) > 5 and listed_twice(names) == {}
    assert not [name for found in names.values() for name in found if name.startswith(("finetune.", "data_prep.", "recipes."))]


@pytest.mark.parametrize("start", [("finetune/train.py",), ("finetune", "train")], ids=["script", "module"])
def test_a_training_loads_each_module_under_one_name(start: tuple[str, ...], tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path)
    own = ["--run.dir", str(tmp_path / "run"), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    code, names = run(*start, "--recipe", str(tiny.FOLDER), *own, "--train.steps", "1")
    assert code == 0 and len(names) > 60 and listed_twice(names) == {}
    started_as_script = start[0].endswith(".py")  # its module is `__main__` then, so `overtone.finetune.train` would be a second one
    assert ("overtone.finetune.train" in names.get(str(ROOT / "finetune" / "train.py"), [])) is not started_as_script
