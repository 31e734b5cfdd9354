"""What `import overtone` costs, and that all it offers is described."""

from __future__ import annotations

import inspect
import subprocess
import sys

import overtone

HEAVY = ("torch", "numpy", "transformers", "pydantic", "yaml", "rich", "tqdm")


def test_the_import_loads_nothing_heavy() -> None:
    code = (
        f"import sys; before = {{*sys.modules}}; import overtone; print(len({{*sys.modules}} - before), [*{{*sys.modules}} & {{*{HEAVY}}}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    count, heavy = done.stdout.split(maxsplit=1)
    assert heavy == "[]\n" and int(count) < 100, done


def test_every_function_says_what_it_takes_returns_and_raises() -> None:
    """As an editor or a notebook shows it; classes describe each attribute below it."""
    assert sorted(overtone.__all__) == overtone.__all__
    for name in overtone.__all__:
        found = getattr(overtone, name)
        text = inspect.getdoc(found) or ""
        assert text, name
        if inspect.isfunction(found):
            parameters = [*inspect.signature(found).parameters]
            assert text.count("\nArgs:\n") == text.count("\nReturns:\n") == text.count("\nRaises:\n") == 1, name
            described = text.partition("\nArgs:\n")[2].partition("\nReturns:\n")[0]
            assert [
                line.split(":")[0].strip() for line in described.splitlines() if line.startswith("    ") and line[4] != " "
            ] == parameters, name
