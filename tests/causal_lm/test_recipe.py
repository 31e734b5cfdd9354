"""Tests that a tied head is one parameter from the base's file to the export: loaded, trained and stored once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.config import resolve
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.exporting import export
from overtone.finetune.monitoring import run_logger, stop_requests
from overtone.finetune.training import setup
from overtone.finetune.training.loop import fit
from overtone.finetune.training.step import Training
from tests.causal_lm.recipe import RECIPE, write_base

FOLDER = Path(__file__).parent


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield join((), tmp_path)
    leave()


def trained(folder: Path, world: World, kind: str) -> Training:
    """Three steps on ragged rows, committed under folder/run."""
    rows = [{"text": "she counted the boats "[:length], "given": given} for length, given in ((22, 4), (9, 0), (14, 12), (5, 2))]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"model.source": folder / "base", "data.train": folder / "train.jsonl", "run.dir": folder / "run", "parallel.strategy": "fsdp"}
    config = resolve(str(FOLDER), RECIPE.Options, [FOLDER / "config.yaml"], [(key, str(value)) for key, value in given.items()])
    training, progress = setup.build(config, RECIPE, world)
    saver = checkpoint.Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous)
    log = run_logger.Events(config.run.dir, world.accelerator, training.total, 0, {})
    with stop_requests.StopRequests() as requests:
        fit(training, progress, log, saver, requests)
    saver.close()
    log.close()
    return training


@pytest.mark.parametrize(("kind", "tied"), [("qwen3", True), ("llama", False)])
def test_a_tied_head_is_one_parameter_and_an_untied_head_its_own(tmp_path: Path, world: World, kind: str, tied: bool) -> None:
    base = write_base(tmp_path / "base", kind)  # type: ignore[arg-type]
    if tied:  # some releases store the copy too; the untrained copy must not be exported
        whole = load_file(base / "model.safetensors")
        save_file({**whole, "lm_head.weight": whole["model.embed_tokens.weight"].clone()}, base / "model.safetensors")
    training = trained(tmp_path, world, kind)
    assert (training.model.lm_head.weight is training.model.model.embed_tokens.weight) == tied
    with rank_shards.open_shards(checkpoint.find(tmp_path / "run")) as (_, shapes):
        assert sum("lm_head" in name for name in shapes) == (0 if tied else 3), "weight and two moments, or nothing"
        assert sum("embed_tokens" in name for name in shapes) == 3
    out = export.export(tmp_path / "run", tmp_path / "out", recipe=str(FOLDER))
    exported = load_file(out / "model.safetensors")
    assert ("lm_head.weight" in exported) == (not tied)
    found = AutoModelForCausalLM.from_pretrained(out)
    own = {name: parameter.full_tensor() for name, parameter in training.model.named_parameters()}
    assert own.keys() == dict(found.named_parameters()).keys()
    assert all(torch.equal(own[name], parameter) for name, parameter in found.named_parameters())
    assert not torch.equal(own["model.embed_tokens.weight"], load_file(base / "model.safetensors")["model.embed_tokens.weight"])
    assert found.lm_head.weight.data_ptr() == found.model.embed_tokens.weight.data_ptr() or not tied
