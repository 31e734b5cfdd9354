"""The notebooks run from top to bottom, install themselves on another machine, and are committed with small outputs of one run."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import overtone
from overtone.finetune import config
from overtone.finetune.config_key_descriptions import fields
from workshop import notebooks

ROOT = Path(__file__).parents[2]
MACHINE = re.compile(r"(?<![\w.:/])/(?:root|home|tmp|work|usr|opt|var)/")


def read_cells(name: str, kind: str = "code") -> list[dict[str, Any]]:
    path = notebooks.FOLDER / f"{name}.ipynb"
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def read_program(name: str) -> str:
    """The code of a notebook; commands of the shell and of pip become `...`."""
    return re.sub(r"^(\s*)[!%].*", r"\1...", "\n".join("".join(cell["source"]) for cell in read_cells(name)), flags=re.MULTILINE)


def test_every_notebook_has_an_environment() -> None:
    assert {path.stem for path in notebooks.FOLDER.glob("*")} == {*notebooks.ENVIRONMENTS} and len(notebooks.ENVIRONMENTS) == 3


@pytest.mark.parametrize("name", notebooks.ENVIRONMENTS)
def test_it_installs_itself_and_looks_for_a_gpu(name: str) -> None:
    install, choice = ("".join(cell["source"]) for cell in read_cells(name)[:2])
    (extras,) = re.findall(r'"\./clone\[(\w+)\]"', install)
    constraints = {".venv": "constraints.txt", ".venv-chat": "constraints-chat.txt"}[notebooks.ENVIRONMENTS[name]]
    assert f"%pip install --quiet -c clone/{constraints} " in install and (ROOT / constraints).is_file()
    assert f"{extras} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "torch.cuda.is_available()" in choice and "No GPU: " in choice


@pytest.mark.parametrize("name", notebooks.ENVIRONMENTS)
def test_it_uses_functions_and_keys_that_exist(name: str) -> None:
    tree = ast.parse(read_program(name))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "overtone"}
    assert used - {"__file__"} and used - {"__file__"} <= {*overtone.__all__}
    keys = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z_]+", str(node.value))}
    known = {key for key, *_ in fields(config.Config)}
    assert {key for key in keys if key.partition(".")[0] in {each.partition(".")[0] for each in known}} <= known


@pytest.mark.parametrize("name", notebooks.ENVIRONMENTS)
def test_its_outputs_are_those_of_one_run_and_small(name: str) -> None:
    cells = read_cells(name)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)], "run workshop/notebooks.py --write"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"} and outputs
    text = json.dumps(outputs)
    assert len(text) <= 100_000 and not MACHINE.findall(re.sub(r'"image/png": "[^"]*"', "", text))


@pytest.mark.parametrize("name", notebooks.ENVIRONMENTS)
def test_its_links_lead_to_pages(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(#[^)]*)?\)", "\n".join("".join(cell["source"]) for cell in read_cells(name, "markdown")))
    assert links and [link for link, _ in links if not (notebooks.FOLDER / link).is_file()] == []


def test_paths_and_sounds_are_left_out(tmp_path: Path) -> None:
    stream = {"output_type": "stream", "name": "stdout", "text": [f"{tmp_path}/runs/me\n", f"{ROOT}/.venv-chat/bin/overtone chat\n"]}
    more = {"output_type": "stream", "name": "stdout", "text": [f"{Path.home()}/.cache/overtone\n"]}
    bar = {"output_type": "stream", "name": "stderr", "text": ["100%"]}
    player = {"output_type": "execute_result", "data": {"text/plain": ["Speech"], "text/html": "x" * 50_000}, "metadata": {}}
    given = {
        "cells": [{"cell_type": "code", "id": "9f", "outputs": [stream, bar, player, more]}],
        "metadata": {"language_info": {"version": "3"}},
    }
    (cell,) = json.loads(notebooks.clean(json.dumps(given), tmp_path))["cells"]
    printed, shown = cell["outputs"]
    assert printed["text"] == ["runs/me\n", "overtone chat\n", "~/.cache/overtone\n"] and shown["data"] == {"text/plain": ["Speech"]}
    assert cell["id"] == "cell-0"


def test_the_middle_of_a_long_output_is_left_out() -> None:
    lines = [f"{number}\n" for number in range(notebooks.LINES + 1)]
    assert notebooks.shorten(lines[:-1]) == lines[:-1]
    half = notebooks.LINES // 2
    assert notebooks.shorten(lines) == [*lines[:half], "…\n", *lines[-half:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.ENVIRONMENTS)
def test_it_runs_from_top_to_bottom(name: str) -> None:
    tools = ROOT / ".venv-tools" / "bin" / "python"
    if not tools.exists():
        pytest.skip("SKIPPED: `make test-notebooks` makes the environment that runs notebooks")
    done = subprocess.run([tools, ROOT / "workshop" / "notebooks.py", name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
