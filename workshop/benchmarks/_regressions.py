"""Checks whether the claims still hold: runs the benchmarks whose ratios are steady, and compares them with the committed tables.

make bench-check     # fails where a ratio has become worse by more than a quarter
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LESS, MORE = "less is better", "more is better"
WATCHED = {
    "export_memory": ("peak / bound", LESS),
    "packing_utilisation": ("best fit", MORE),
    "start_up": ("of import torch", LESS),
    "step_overhead": ("our step / bare loop", LESS),
    "sub_talker": ("loop / at once", MORE),
    "voice_batches": ("by budget", MORE),
}
"""Ratios of processor time, of bytes or of counts in one process. What waits for a disk or for other ranks is too unsteady to judge."""
ALLOWED = 1.25
"""Factor by which a ratio may be worse than the committed one."""
GRAIN = 0.02
"""Ratios in hundredths, as small as 0.01, jump by whole ones."""

Rows = list[dict[str, str]]


def main() -> int:
    found = [line for name in WATCHED for line in regressions(name, rows_of(HERE / "results" / f"{name}.md"), measured_now(name))]
    print("\n".join(found) or f"no ratio of {', '.join(WATCHED)} is more than {ALLOWED - 1:.0%} worse than the committed one")
    return 1 if found else 0


def measured_now(name: str) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, HERE / f"{name}.py", "--to", folder], check=True)
        return rows_of(Path(folder) / f"{name}.md")


def regressions(name: str, committed: Rows, now: Rows) -> list[str]:
    """One line for each row whose watched ratio is worse than allowed, or that is new or gone."""
    column, better = WATCHED[name]
    committed, now = steady(committed), steady(now)
    if len(committed) != len(now):
        return [f"{name}: {len(now)} rows, but {len(committed)} are committed; run it and commit its table"]
    pairs = [(one, number(one[column]), number(other[column])) for one, other in zip(committed, now, strict=True)]
    return [
        f"{name}, {', '.join(list(row.values())[:2])}: {column} is {after:g}, {before:g} is committed"
        for row, before, after in pairs
        if (after > before * ALLOWED + GRAIN if better is LESS else after < before / ALLOWED - GRAIN)
    ]


def steady(rows: Rows) -> Rows:
    """Without those of several ranks."""
    return [row for row in rows if row.get("ranks", "1") == "1"]


def rows_of(path: Path) -> Rows:
    """The table of a result, row by row."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head, _, *rest = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, cells, strict=True)) for cells in rest]


def number(cell: str) -> float:
    """`1.44` or `99.61 %`."""
    return float(cell.removesuffix("%"))


if __name__ == "__main__":
    sys.exit(main())
