"""Values of flags that the verbs of a Ray cluster share; tests/finetune/test_ray_train.py has them in a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.ray_cluster.verb_arguments import USE_GPU, list_local_files, parse_choice, parse_count, parse_storage
from tests.finetune import tiny


def test_values_are_parsed() -> None:
    assert parse_choice("use-gpu", "auto", USE_GPU) is None and parse_choice("use-gpu", "false", USE_GPU) is False
    assert parse_count("max-failures", "0") == 0 and parse_storage("/shared") == Path("/shared")


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="--num-samples 0: expected a number from 1"):
        parse_count("num-samples", "0", 1)
    with pytest.raises(UserError, match="--storage s3://bucket: the run's folder must be one that all machines mount"):
        parse_storage("s3://bucket")


def test_each_machine_needs_data_and_base(tmp_path: Path) -> None:
    chosen = tiny.config_in(tmp_path)
    assert list_local_files(chosen.model.source, chosen.data) == [Path.cwd(), tmp_path / "base", tmp_path / "train.jsonl"]
