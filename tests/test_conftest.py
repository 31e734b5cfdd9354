"""Tests of `tests/conftest.py`: the files that run first exist, and the others keep their order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import FIRST, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", FIRST)
def test_each_of_the_first_files_exists(path: str) -> None:
    assert path.endswith(("/", ".py", "_")) and list((ROOT / path).parent.glob(f"{Path(path).name}*"))


def test_long_files_come_first_and_the_others_keep_their_order() -> None:
    names = ["tests/a/test_a.py::test_b", "tests/a/test_a.py::test_a", f"{FIRST[1]}test_x.py::test_x", f"{FIRST[0]}::test_y"]
    items: list[Any] = [SimpleNamespace(nodeid=name, get_closest_marker=lambda _: None) for name in names]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [names[3], names[2], names[0], names[1]]
