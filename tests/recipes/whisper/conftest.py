"""The tiny Whisper and a trained run, made once for all tests; they must not change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.exporting import export
from overtone.recipes.whisper.model import tiny_checkpoint
from tests.recipes.whisper.tiny_whisper import train_here
from tests.shared_folders import share_folder


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multilingual one."""
    return share_folder(tmp_path_factory, "tiny-whisper", lambda folder: tiny_checkpoint.build(folder / "base")) / "base"


@pytest.fixture(scope="session")
def english_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return share_folder(tmp_path_factory, "tiny-whisper-en", lambda folder: tiny_checkpoint.build(folder / "base", False)) / "base"


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    """Two steps of all weights."""
    return share_folder(tmp_path_factory, "whisper-run", lambda folder: train_here(folder, base)) / "run"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, full_run: Path) -> Path:
    return share_folder(tmp_path_factory, "whisper-export", lambda folder: export.export(full_run, folder / "export")) / "export"
