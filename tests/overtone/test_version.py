"""The version of `overtone.version` is that of the installed package."""

from __future__ import annotations

from importlib import metadata

import overtone
from overtone import version


def test_the_version_is_that_of_the_distribution() -> None:
    assert version.__version__ == overtone.__version__ == metadata.version("overtone")
