"""A trained run of each kind, made once for all tests of this folder; tests must not change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.exporting import export
from tests.recipes.llm_reward.tiny_scorers import CLASSES, LORA, train_here
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("reward-base") / "base")


@pytest.fixture(scope="session")
def reward_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(tmp_path_factory.mktemp("reward-full"))


@pytest.fixture(scope="session")
def class_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(tmp_path_factory.mktemp("reward classes"), *CLASSES, *LORA, ("data.packing", "false"))


@pytest.fixture(scope="session")
def reward_export(reward_run: Path) -> Path:
    return export.export(reward_run, reward_run.parent / "export")


@pytest.fixture(scope="session")
def class_export(class_run: Path) -> Path:
    return export.export(class_run, class_run.parent / "export")
