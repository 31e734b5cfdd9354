"""A tiny model and two voices, built once and shared by all tests here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model

from overtone.recipes.csm.model import tiny_checkpoint
from tests.recipes.csm.tiny_csm import LearnedCsm, ReadyCsm, export, load_stock, make_ready, make_rows, memorize
from tests.shared_folders import share_folder

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("csm") / "tiny")


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> ReadyCsm:
    """The untrained model with four clips of two speakers, in eval mode; do not change its weights."""
    ready = make_ready(tmp_path_factory.mktemp("fresh"), tiny, make_rows(["Ann", "Bob"]))
    ready.model.eval()
    return ready


@pytest.fixture(scope="session")
def stock(tiny: Path) -> Any:
    """The same model in transformers' own class."""
    return load_stock(tiny)


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> LearnedCsm:
    """Trained once for all test processes, which share the export: copy it to change it."""
    rows = make_rows(["Ann", "Bob"])

    def train(folder: Path) -> None:
        ready = make_ready(folder / "data", tiny, rows)
        memorize(ready)
        export(ready, folder / "export")
        save_model(ready.model, str(folder / "memorized.safetensors"))

    folder = share_folder(tmp_path_factory, "learned_csm", train)
    ready = make_ready(tmp_path_factory.mktemp("learned"), tiny, rows)
    load_model(ready.model, folder / "memorized.safetensors")
    ready.model.eval()
    return LearnedCsm(ready, rows, folder / "export", load_stock(folder / "export"))
