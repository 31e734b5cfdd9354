"""Writes docs/benchmarks.md from benchmarks/results/, and the list of them between the marks in README.md; `make bench` calls it last."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from finetune import files  # noqa: E402 - the line before makes it importable

BEGIN, END = "<!-- measured: written by make bench -->", "<!-- end of measured -->"
HEAD = """# Benchmarks

Written by `make bench`, one command for each table. Ratios are of one run on one machine; most were taken on two shared CPU cores, and none
on a GPU unless it says so.
"""


def results() -> list[Path]:
    return sorted((HERE / "results").glob("*.md"))


def question(result: Path) -> str:
    """What a benchmark measures: the first line of its file's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{result.stem}.py").read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0]


def page() -> str:
    """docs/benchmarks.md."""
    parts = [f"## {result.stem}\n\n{question(result)}\n\n{result.read_text(encoding='utf-8').strip()}\n" for result in results()]
    return "\n".join([HEAD, *parts])


def with_list(readme: str) -> str:
    """README.md with a line for each benchmark in place of what stood between the marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [f"- [{result.stem}](docs/benchmarks.md#{result.stem}): {question(result)}" for result in results()]
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}"


if __name__ == "__main__":
    files.write_text(HERE.parent / "docs" / "benchmarks.md", page())
    readme = HERE.parent / "README.md"
    files.write_text(readme, with_list(readme.read_text(encoding="utf-8")))
