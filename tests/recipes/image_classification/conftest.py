"""A trained run of each kind, made once for all tests of this folder; tests must not change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.exporting import export
from tests.recipes.image_classification.tiny_images import LORA, train_here


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until it knows the colours."""
    return train_here(tmp_path_factory.mktemp("images-full"), ("train.steps", "30"), ("eval.every", "30"), ("checkpoint.every", "30"))


@pytest.fixture(scope="session")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(tmp_path_factory.mktemp("images-lora"), *LORA)


@pytest.fixture(scope="session")
def exported(full_run: Path) -> Path:
    return export.export(full_run, full_run.parent / "export")
