"""A disk without room for two checkpoints is told before a weight is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune import files
from finetune.errors import UserError
from finetune.preflight import check_room, checkpoint_bytes
from finetune.world import join, leave
from tests.finetune import tiny


def test_what_a_checkpoint_takes_is_what_was_said(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"), ("checkpoint.asynchronous", "false"))
    training, _ = tiny.trained(join((), tmp_path), config)
    leave()
    trained = sum(parameter.numel() for parameter in training.model.parameters())
    (folder,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert sum(path.stat().st_size for path in folder.rglob("*.safetensors")) == pytest.approx(checkpoint_bytes(trained), rel=0.1)


def test_room_for_two_or_for_the_one_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 12_000)
    check_room(tmp_path, 500)
    with pytest.raises(UserError, match=r"room for 2 more of this run's checkpoints needs 24,000 bytes .* 12,000 are free"):
        check_room(tmp_path, 1000)
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    check_room(tmp_path, 1000)


def test_training_asks_before_it_reads_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config_in(tmp_path)
    monkeypatch.setattr(files, "free_bytes", lambda _: 10)
    monkeypatch.setattr("finetune.models.materialise", lambda *_: pytest.fail("weights were read"))
    try:
        with pytest.raises(UserError, match="more of this run's checkpoints"):
            tiny.built(join((), tmp_path), config)
    finally:
        leave()
