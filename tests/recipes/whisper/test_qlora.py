"""QLoRA: adapters over 4-bit layers of encoder and decoder; the export is the model that was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from overtone.finetune.exporting import export
from overtone.finetune.modeling import quantization
from overtone.recipes.whisper.model import tiny_checkpoint
from tests.recipes.whisper.tiny_whisper import train_here

pytest.importorskip("bitsandbytes")
RANK = 2


def test_a_step_trains_adapters_over_rounded_layers_and_nothing_else(tmp_path: Path) -> None:
    base = tiny_checkpoint.build(tmp_path / "base", width=64)  # blocks of 64 weights divide its layers
    overrides = {"model.quantization": "nf4", "model.lora": f"{{rank: {RANK}, alpha: 4}}", "train.steps": "1", "checkpoint.every": "1"}
    run = train_here(tmp_path, base, *{**overrides, "eval.every": "1"}.items())
    exported, before = (load_file(folder / "model.safetensors") for folder in (export.export(run, tmp_path / "export"), base))
    assert exported.keys() == before.keys()
    adapted = [name for name in before if ".layers." in name and name.endswith(("proj.weight", "fc1.weight", "fc2.weight"))]
    assert len(adapted) == 6 + 2 * 10, "of one layer of the encoder and two of the decoder, which attends twice"
    for name, weight in before.items():
        if name in adapted:
            update = exported[name] - quantization.round_to_4_bits(weight)
            assert 0 < torch.linalg.matrix_rank(update, atol=1e-5) <= RANK, name
        else:
            assert torch.equal(exported[name], weight), name
