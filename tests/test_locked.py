"""The hashed requirements are the pinned ones: the same versions, every one with a hash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PINS = {
    "main.txt": "constraints.txt",
    "build.txt": "constraints.txt",
    "torch-cpu.txt": "constraints.txt",
    "next.txt": "constraints-next.txt",
}


def pins(path: Path) -> dict[str, str]:
    """Package → version."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s\\;]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("name", PINS)
def test_the_locked_versions_are_the_pinned_ones(name: str) -> None:
    locked, pinned = pins(ROOT / "locked" / name), pins(ROOT / PINS[name])
    assert locked and locked == {package: pinned.get(package) for package in locked}


def test_all_that_is_pinned_is_locked() -> None:
    everything = {**pins(ROOT / "locked" / "main.txt"), **pins(ROOT / "locked" / "build.txt"), **pins(ROOT / "locked" / "cuda.txt")}
    assert len(everything) > 180
    assert set(pins(ROOT / "constraints.txt")) - set(everything) <= {"tzdata"}, "run locked/compile"


@pytest.mark.parametrize("name", [*PINS, "cuda.txt"])
def test_every_entry_has_a_hash(name: str) -> None:
    entries = re.findall(r"^[^#\s].*(?:\n[ ]+.*)*", (ROOT / "locked" / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert entries and all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
