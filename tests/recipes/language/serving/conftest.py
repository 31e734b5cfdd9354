"""A tiny model with random weights, whose answers are any bytes at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overtone.recipes.language.answer_generation import LoadedModel, load_model
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("chats") / "tiny")


@pytest.fixture(scope="session")
def loaded(folder: Path) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(folder)
