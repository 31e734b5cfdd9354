"""Puts every table of benchmarks/results/ between the marks in README.md; `make bench` calls it last."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from finetune import files  # noqa: E402 - the line before makes it importable

BEGIN, END = "<!-- measured: written by make bench -->", "<!-- end of measured -->"


def with_tables(readme: str, tables: list[str]) -> str:
    """The page with the tables in place of what stood between the marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n\n".join(table.strip() for table in tables) + f"\n\n{END}{after}"


if __name__ == "__main__":
    page = HERE.parent / "README.md"
    made = [path.read_text(encoding="utf-8") for path in sorted((HERE / "results").glob("*.md"))]
    files.write_text(page, with_tables(page.read_text(encoding="utf-8"), made))
