"""Weights of a sharded model as its base has them; tests/launch/test_reward_loop.py reads them on several ranks."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.modeling.lora_adapters import is_adapter
from overtone.finetune.modeling.whole_weights import iterate_whole_weights
from overtone.finetune.training import setup
from overtone.finetune.training.step import make_loader
from tests.finetune import tiny


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("lora", [None, "{rank: 3, alpha: 6}", "{rank: 3, alpha: 6, dora: true}"])
def test_adapters_are_merged_as_the_model_computes_with_them(tmp_path: Path, strategy: str, lora: str | None) -> None:
    given = [("parallel.strategy", strategy), ("train.precision", "fp32"), ("log.trackers", "[]")]
    config = tiny.config_in(tmp_path, *given, *([("model.lora", lora)] if lora else []))
    world = join((), tmp_path)
    try:
        training, _ = setup.build(config, tiny.RECIPE, world)
        for parameter in training.model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
        weights = dict(iterate_whole_weights(training.model, config.model.lora))
        assert not any(is_adapter(name) or "base_layer" in name for name in weights)
        plain = tiny.RECIPE.load(config).model
        plain.load_state_dict({**weights, **training.loaded.buffers}, assign=True)
        with contextlib.closing(make_loader(training, training.rows)) as loader:
            batch = tiny.RECIPE.collate([loader.sample(0), loader.sample(1)])
        with torch.no_grad():
            found, expected = (tiny.RECIPE.loss(model.eval(), batch) for model in (plain, training.model))
        for name, term in expected.items():
            assert float(found[name].sum) == pytest.approx(float(term.sum), rel=1e-4)
        sharding.reshard(training.model)
    finally:
        leave()
        tiny.let_go(tmp_path / "run")
