"""Every line of workshop/lab_book/inputs.md names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_line_names_a_test_that_exists() -> None:
    rows = [
        line
        for line in (ROOT / "workshop" / "lab_book" / "inputs.md").read_text().split("\n")
        if line.startswith("|") and not line.startswith(("| input |", "| ---"))
    ]
    for row in rows:
        names = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert names, f"no test in: {row}"
        for path, name in names:
            assert re.search(rf"^\s*def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"
