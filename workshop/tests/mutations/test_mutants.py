"""Mutants apply to the source and name existing tests. `make check` runs this file; `make mutants` runs the tests on the mutants."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from workshop.mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[3]


@functools.cache
def quick_tests(path: str) -> dict[str, bool]:
    """Return whether each test in a file is quick."""
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
