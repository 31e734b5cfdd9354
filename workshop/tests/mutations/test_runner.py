"""The runner distinguishes killed, surviving and lost mutants, and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop.mutations import __main__ as runner
from workshop.mutations.mutants import Mutant


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
