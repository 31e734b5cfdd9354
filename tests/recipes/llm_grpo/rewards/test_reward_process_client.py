"""Functions of the user in a child process: its limits, and that a failure ends nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError, RewardTimeoutError
from overtone.recipes.llm_grpo.rewards.reward_process_client import RewardProcess

FUNCTIONS = """
import os, time
from math import sqrt
import dataclasses

WEIGHTS = {"half": 0.5}

def right(answer, row):
    print("noise on standard output")
    return answer == row["answer"]

def half(answer, row):
    return len(answer) / 2

def raises(answer, row):
    raise ValueError("line one\\nline two")

def nan(answer, row):
    return float("nan")

def text(answer, row):
    return "much"

def slow(answer, row):
    while True:
        time.sleep(0.01)

def large(answer, row):
    return len(bytearray(8 * 2**30))

def gone(answer, row):
    os._exit(3)

def _private(answer, row):
    return 1
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RewardProcess]:
    (tmp_path / "my rewards.py").write_text(FUNCTIONS)
    found = RewardProcess(tmp_path / "my rewards.py", 0.5, 2.0)
    yield found
    found.close()


def test_functions_are_called_with_the_answer_and_the_row(process: RewardProcess) -> None:
    assert process.read_weights() == {**dict.fromkeys(("right", "raises", "nan", "text", "slow", "large", "gone"), 1.0), "half": 0.5}
    assert process.call("7", {"answer": "7"}, "right") == 1.0 and process.call("8", {"answer": "7"}, "right") == 0.0
    assert process.call("abc", {}, "half") == 1.5


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("raises", "ValueError: line one line two"),
        ("nan", "it returned nan"),
        ("text", "it returned 'much', not a number"),
        ("slow", "it had not ended after 0.5 s"),
        ("large", "MemoryError"),
        ("gone", "its process ended with code 3"),
    ],
)
def test_a_failure_is_explained_and_the_next_call_works(process: RewardProcess, function: str, problem: str) -> None:
    with pytest.raises(RewardError, match=problem):
        process.call("", {}, function)
    assert process.call("abcd", {}, "half") == 2.0


def test_a_call_that_takes_too_long_leaves_no_process(process: RewardProcess) -> None:
    process.read_weights()
    assert process._process is not None
    child = psutil.Process(process._process.pid)
    with pytest.raises(RewardError, match="had not ended"):
        process.call("", {}, "slow")
    assert not child.is_running() and process._process is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("x = 1", "it defines no public function"),
        ("from math import sqrt\nfrom os.path import join", "it defines no public function"),
        ("def f(", "SyntaxError"),
        ("import no_such_package_at_all", "No module named 'no_such_package_at_all'"),
        ("WEIGHTS = {'g': 1}\ndef f(answer, row): return 1", "WEIGHTS names g, which the file does not define"),
        ("WEIGHTS = {'f': float('nan')}\ndef f(answer, row): return 1", "the weight of f is not finite"),
        ("import sys; sys.exit(4)", "SystemExit: 4"),
        ("async def f(answer, row): return 1", "f is async or a generator"),
        ("def f(answer, row): yield 1", "f is async or a generator"),
        (
            "def f(answer, row): return 1\ndef helper(text): return 2",
            r"helper cannot be called as helper\(answer, row\): .*begin the name .* with _",
        ),
        ("def f(answer, row, more): return 1", r"f cannot be called as f\(answer, row\): missing a required argument: 'more'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "f.py").write_text(content)
    process = RewardProcess(tmp_path / "f.py", 5.0, 2.0)
    with pytest.raises(UserError, match=rf"^options\.rewards\.functions: .*f\.py: .*{problem}"):
        process.read_weights()
    process.close()


@pytest.mark.parametrize("name", ["none.py", "folder.py", "rewards.txt"])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "rewards.txt").write_text("def f(answer, row): return 1")
    with pytest.raises(UserError, match=f"functions: .*{name} is no Python file"):
        RewardProcess(tmp_path / name, 5.0, 2.0).read_weights()


@pytest.mark.parametrize("path", [None, ":/nowhere"])
def test_modules_in_the_current_folder_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    (tmp_path / "cwd").mkdir()
    for name in ("resource", "jsonschema", "overtone", "inspect"):
        (tmp_path / "cwd" / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("PYTHONPATH", path) if path else monkeypatch.delenv("PYTHONPATH", raising=False)
    process = RewardProcess(None, 20.0, 2.0)
    assert process.check_schema("3", {"type": "integer"}) == 1.0 and not (tmp_path / "planted").exists()
    process.close()


def test_a_pattern_has_the_time_limit_of_a_call() -> None:
    process = RewardProcess(None, 20.0, 2.0)
    assert process.match_pattern("yes", "yes|no") == 1
    process.close()
    process = RewardProcess(None, 0.3, 2.0)
    with pytest.raises(RewardTimeoutError, match=r"had not ended after 0\.3 s"):
        process.match_pattern("a" * 60 + "c", "(a|a)+b")
    process.close()


def test_schemas_need_jsonschema_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = RewardProcess(None, 20.0, 2.0, {"type": "no such type"}, schemas=True)
    with pytest.raises(UserError, match=r"^options\.rewards\.json_schema: SchemaError: 'no such type'"):
        process.read_weights()
    (tmp_path / "jsonschema.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^options\.rewards\.json_schema: jsonschema is not installed"):
        RewardProcess(None, 20.0, 2.0, schemas=True).read_weights()


def test_jsonschema_is_imported_before_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("import sys\ndef f(answer, row): return 'jsonschema' in sys.modules")
    for schemas in (True, False):
        process = RewardProcess(tmp_path / "f.py", 20.0, 2.0, schemas=schemas)
        assert process.call("", {}, "f") == schemas
        process.close()


def test_schemas_are_checked_without_a_file() -> None:
    process = RewardProcess(None, 20.0, 2.0)
    schema = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}
    assert [process.check_schema(text, schema) for text in ('{"age": 3}', '{"age": "3"}', "{}", "age: 3", "")] == [1, 0, 0, 0, 0]
    with pytest.raises(RewardError, match="SchemaError"):
        process.check_schema("{}", {"type": "no such type"})
    with pytest.raises(RewardError, match=r"Unresolvable|unresolvable"):  # nothing is fetched
        process.check_schema("{}", {"$ref": "http://127.0.0.1:9/schema.json"})
    process.close()
