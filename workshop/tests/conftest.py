"""The tests of the workshop run under the same settings as those of the product: examples of hypothesis, time limits of slow tests."""

from __future__ import annotations

from tests.conftest import pytest_collection_modifyitems, pytest_make_parametrize_id

__all__ = ["pytest_collection_modifyitems", "pytest_make_parametrize_id"]
