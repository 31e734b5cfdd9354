"""The studio on a folder of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from overtone.recipes.serving.access_control import AccessPolicy
from overtone.studio.studio_app import make_application
from tests.asgi import App


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder that the studio shows. A module may fill it in a fixture of the same name."""
    return tmp_path


@pytest.fixture
def app(place: Path) -> Iterator[App]:
    """The studio on `place`, for this machine."""
    found = App(make_application(place, "127.0.0.1", AccessPolicy(None, local=True)))
    yield found
    found.close()
