"""A trained run and its export, made once for all tests of this folder; tests must not change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.exporting import export
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All weights trained until the model has memorized two chats."""
    folder = tmp_path_factory.mktemp("full")
    return tiny_runs.trained(folder, tiny_runs.FULL, ("data.val", str(folder / "chats.jsonl")))


@pytest.fixture(scope="session")
def exported(full_run: Path) -> Path:
    return export.export(full_run, full_run.parent / "export")
