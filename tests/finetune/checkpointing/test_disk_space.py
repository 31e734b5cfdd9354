"""A disk without room for two checkpoints is reported before a weight is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from overtone.finetune.checkpointing.disk_space import check_room, checkpoint_bytes, checkpoint_bytes_of
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.optimizers import Rule
from overtone.finetune.storage import files
from tests.finetune import tiny


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_size_of_a_checkpoint_is_as_estimated(tmp_path: Path, optimizer: Rule) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"), ("checkpoint.asynchronous", "false"), ("train.optimizer", optimizer))
    training, _ = tiny.trained(join((), tmp_path), config)
    leave()
    trained = sum(parameter.numel() for parameter in training.model.parameters())
    in_blocks = sum(parameter.numel() for parameter in training.model.blocks.parameters() if parameter.dim() == 2)  # type: ignore[union-attr, operator]
    (folder,) = (tmp_path / "run" / "checkpoints").iterdir()
    (found,) = (load_file(path).values() for path in folder.rglob("*.safetensors"))
    planned = checkpoint_bytes_of(training.model, optimizer, training.loaded.blocks)
    assert planned == checkpoint_bytes(trained, 8 * trained - (4 * in_blocks if optimizer == "muon" else 0))
    assert sum(tensor.numel() * tensor.element_size() for tensor in found) == planned + 4, "and a buffer"


def test_space_for_two_checkpoints_is_required_or_for_the_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 12_000)
    check_room(tmp_path, 6_000)
    with pytest.raises(UserError, match=r"room for 2 more of this run's checkpoints needs 24,000 bytes .* 12,000 are free"):
        check_room(tmp_path, 12_000)
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    check_room(tmp_path, 12_000)


def test_training_checks_disk_space_before_it_reads_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config_in(tmp_path)
    monkeypatch.setattr(files, "free_bytes", lambda folder: 10**9 if folder.name == "cache" else 10)
    monkeypatch.setattr("overtone.finetune.modeling.loading.materialise", lambda *_: pytest.fail("weights were read"))
    try:
        with pytest.raises(UserError, match="more of this run's checkpoints"):
            tiny.built(join((), tmp_path), config)
    finally:
        leave()
