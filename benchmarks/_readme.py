"""Puts the tables of benchmarks/results/ between the marks in README.md, long ones as a link; `make bench` calls it last."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from finetune import files  # noqa: E402 - the line before makes it importable

BEGIN, END = "<!-- measured: written by make bench -->", "<!-- end of measured -->"


LONGEST_SHOWN = 12
"""Lines of a result that a page for newcomers may show."""


def shown(path: Path) -> str:
    """The result, or where it stands and the command that makes it."""
    text = path.read_text(encoding="utf-8").strip()
    if len(text.splitlines()) <= LONGEST_SHOWN:
        return text
    return f"{text.splitlines()[0]} → [the table](benchmarks/results/{path.name})"


def with_tables(readme: str, tables: list[str]) -> str:
    """The page with the tables in place of what stood between the marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n\n".join(tables) + f"\n\n{END}{after}"


if __name__ == "__main__":
    page = HERE.parent / "README.md"
    made = [shown(path) for path in sorted((HERE / "results").glob("*.md"))]
    files.write_text(page, with_tables(page.read_text(encoding="utf-8"), made))
