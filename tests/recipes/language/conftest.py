"""The trained run of the tests of llm_sft, and its export."""

from __future__ import annotations

from tests.recipes.llm_sft.conftest import exported, full_run

__all__ = ["exported", "full_run"]
