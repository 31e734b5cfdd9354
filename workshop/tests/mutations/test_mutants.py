"""Mutants apply to the source and name existing tests; the runner distinguishes killed, surviving and lost mutants."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from workshop.mutations import __main__ as runner
from workshop.mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[3]


@functools.cache
def quick_tests(path: str) -> dict[str, bool]:
    """Of each test in a file, whether it is quick."""
    found = [node for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return {node.name: not any("slow" in ast.unparse(decorator) for decorator in node.decorator_list) for node in found}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{number}-{Path(mutant.file).stem}" for number, mutant in enumerate(MUTANTS)])
def test_each_mutant_applies_to_the_source_and_names_an_existing_test(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.file.split("/")[0] in ("finetune", "data_prep", "recipes", "workshop") and mutant.old != mutant.new
    assert source.count(mutant.old) == 1, f"the old text occurs {source.count(mutant.old)} times in {mutant.file}"
    ast.parse(source.replace(mutant.old, mutant.new))  # any test would kill a syntax error
    path, _, name = mutant.test.partition("::")
    tests = quick_tests(path)
    assert name in tests, f"{path} has no {name}"
    assert tests[name], f"{name} of {path} is slow"


def test_the_list_has_at_least_140_mutants_and_no_duplicates() -> None:
    assert len(MUTANTS) >= 140
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "product.py").write_text("def double(value):\n    return 2 * value\n\n\ndef unseen():\n    return 1\n")
    (tmp_path / "test_product.py").write_text("from product import double\n\n\ndef test_double():\n    assert double(3) == 6\n")
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "test", "outcome"),
    [
        ("2 * value", "3 * value", "test_double", "killed"),
        ("return 1", "return 2", "test_double", "SURVIVED"),
        ("return", "yield", "test_double", "LOST: the old text occurs 2 times in product.py"),
        ("4 * value", "3 * value", "test_double", "LOST: the old text occurs 0 times in product.py"),
        ("2 * value", "3 * value", "test_gone", "LOST: pytest exited with 4: "),
    ],
)
def test_the_outcome_of_a_mutant(tree: Path, old: str, new: str, test: str, outcome: str) -> None:
    before = (tree / "product.py").read_text()
    assert runner.try_out(tree, Mutant("product.py", old, new, f"test_product.py::{test}", "")).startswith(outcome)
    assert (tree / "product.py").read_text() == before


def test_the_runner_exits_if_a_test_fails_without_a_mutant(tree: Path) -> None:
    mutant = Mutant("product.py", "2 * value", "3 * value", "test_product.py::test_double", "")
    runner.require_green(tree, [mutant])
    (tree / "product.py").write_text((tree / "product.py").read_text().replace("2 * value", "value"))
    with pytest.raises(SystemExit, match="the tests fail without a mutant"):
        runner.require_green(tree, [mutant])


def test_outcomes_are_reused_only_for_the_same_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "KEPT", tmp_path / "runs" / "mutants.json")
    assert runner.remembered("this tree") == {}
    runner.remember("this tree", {"a": "killed"})
    assert runner.remembered("this tree") == {"a": "killed"} and runner.remembered("another") == {}


@pytest.mark.parametrize(("second", "code"), [("killed", 0), ("SURVIVED", 1), ("LOST: the old text occurs 0 times in b.py", 1)])
def test_an_interrupted_run_resumes_and_exits_with_1_if_a_mutant_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], second: str, code: int
) -> None:
    mutants = (Mutant("a.py", "1", "2", "t", "first fault"), Mutant("b.py", "1", "2", "t", "second fault"))
    monkeypatch.setattr(runner, "MUTANTS", mutants)
    monkeypatch.setattr(runner, "KEPT", tmp_path / "mutants.json")
    monkeypatch.setattr(runner, "tree_digest", lambda: "this tree")
    monkeypatch.setattr(runner, "copy_tree", lambda _: None)
    monkeypatch.setattr(runner, "require_green", lambda *_: None)
    runner.remember("this tree", {runner.key_of(mutants[0]): "killed"})
    tried: list[Mutant] = []
    monkeypatch.setattr(runner, "try_out", lambda _, mutant: tried.append(mutant) or second)
    assert runner.main([]) == code and tried == [mutants[1]]
    printed = capsys.readouterr().out
    assert "| a.py | first fault | killed |" in printed and f"| b.py | second fault | {second} |" in printed
    assert runner.main([]) == code and tried == [mutants[1]], "no mutants left to try"
    assert runner.main(["--fresh", "first"]) == code and tried == [mutants[1], mutants[0]]


def test_a_mutant_that_fills_the_memory_is_killed_at_a_limit(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_it() -> None:\n    assert len(bytearray(9 << 30)) > 0\n")
    code, output = runner.run(tmp_path, "test_one.py")
    assert code == runner.TESTS_FAILED and "MemoryError" in output
