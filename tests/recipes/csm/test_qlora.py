"""QLoRA: adapters over 4-bit layers of backbone and depth decoder; the export is the model that was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.torch_version import TorchVersion

from overtone.finetune.config import resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.modeling import quantization
from overtone.finetune.training import run
from overtone.recipes.csm.model import tiny_checkpoint
from overtone.recipes.csm.recipe import RECIPE
from tests.recipes.csm.tiny_csm import call_stock, load_stock, make_ready, make_rows, write_rows

pytest.importorskip("bitsandbytes")
RANK, STEPS = 4, 40


def train(folder: Path, base: Path) -> Path:
    """A run on one process, evaluated on its own clips after the last step."""
    data = write_rows(folder / "train.jsonl", make_rows(["Ann", "Bob"]))
    given: dict[str, Any] = {
        "model.source": base, "data.train": data, "data.val": data, "run.dir": folder / "run", "model.quantization": "nf4",
        "model.lora": f"{{rank: {RANK}, alpha: 8}}", "train.steps": STEPS, "train.lr": 0.02, "train.warmup": 0, "train.precision": "fp32",
        "train.micro_tokens": 512, "train.global_batch_tokens": 512, "eval.every": STEPS, "log.trackers": "[]",
    }  # fmt: skip
    run.train(join((), folder), resolve("csm", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()]), RECIPE)
    leave()
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if TorchVersion(torch.__version__) < "2.12":
        pytest.skip("refused, see test_a_torch_that_cannot_shard_bytes_is_refused_by_its_version")
    folder = tmp_path_factory.mktemp("csm-qlora")
    train(folder, tiny_checkpoint.build(folder / "base", width=128))  # blocks of 64 weights divide its layers
    export.export(folder / "run", folder / "export")
    return folder


@pytest.mark.slow
@pytest.mark.ci
def test_layers_of_backbone_and_depth_decoder_are_rounded_and_adapted_and_nothing_else_changes(trained: Path) -> None:
    exported, base = (load_file(trained / name / "model.safetensors") for name in ("export", "base"))
    for name, weight in base.items():
        if ".layers." in name and name.endswith("proj.weight") and not name.startswith("codec_model."):
            update = exported[name] - quantization.round_to_4_bits(weight)
            assert 0 < torch.linalg.matrix_rank(update, atol=1e-5) <= RANK, name
        else:
            assert torch.equal(exported[name], weight), name


@pytest.mark.slow
@pytest.mark.ci
def test_the_loss_of_the_export_in_the_stock_class_is_that_of_the_run(trained: Path, tmp_path: Path) -> None:
    (state,) = [json.loads(path.read_text()) for path in (trained / "run" / "checkpoints").glob(f"*{STEPS}/state.json")]
    samples, stock = make_ready(tmp_path, trained / "export", make_rows(["Ann", "Bob"])).samples, load_stock(trained / "export")
    with torch.no_grad():
        found = [call_stock(stock, sample) for sample in samples]
    frames = [len(sample["codes"]) for sample in samples]
    loss = sum((each.loss.item()) * count / sum(frames) for each, count in zip(found, frames, strict=True))
    assert state["quantization"] == "nf4" and loss == pytest.approx(state["validation_loss"], abs=2e-4)
    assert loss < call_stock(load_stock(trained / "base"), samples[0]).loss.item() - 1


def test_a_base_whose_layers_blocks_do_not_divide_is_refused_with_its_layer(tiny: Path, tmp_path: Path) -> None:
    try:
        with pytest.raises(UserError, match="backbone_model.layers.0.self_attn.q_proj has 32 inputs, which blocks of 64 do not divide"):
            train(tmp_path, tiny)
    finally:
        leave()
