"""The world of one, as the tests of the single rooms join it."""

from tests.finetune.conftest import world

__all__ = ["world"]
