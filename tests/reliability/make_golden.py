"""python -m tests.reliability.make_golden

Makes tests/reliability/golden/format-N, N being today's format: a base, data, and the checkpoint of step 3 of a full and of a LoRA run on
2 processes, with what must be found when they are read. Folders of earlier formats stay as they are: later versions must read them, or say
that they cannot. Starts from seeds, so making it again on the same packages makes the same bytes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.storage import files
from tests.byte_model.recipe import write_base
from tests.finetune import tiny
from tests.reliability import holdings, victims

RECIPE = Path("tests/reliability/golden")
FOLDER = victims.ROOT / RECIPE / f"format-{checkpoint.FORMAT}"
SAVED, STEPS, RANKS = 3, 8, 2
TRAINED = {"full": (), "lora": ("--model.lora", "{rank: 2, alpha: 4}")}


def arguments(trained: str, run: Path) -> list[str]:
    """Relative paths alone, since they are written into the checkpoint."""
    place = FOLDER.relative_to(victims.ROOT)
    own = ["--recipe", RECIPE, "--model.source", place / "base", "--data.train", place / "train.jsonl", "--run.dir", run]
    return [*map(str, own), *TRAINED[trained]]


def make_base(folder: Path) -> None:
    """In bf16: half the bytes."""
    write_base(folder)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()}
    files.write_bytes(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))


def make(trained: str) -> dict[str, object]:
    """Train, keep the checkpoint, and tell what it holds and how the run went on."""
    run = Path("runs") / f"golden-{trained}"
    files.discard(victims.ROOT / run)
    witness = victims.ROOT / run / "witness"
    codes = victims.wait(holdings.begin(witness, RANKS, arguments(trained, run)))
    assert codes == [0] * RANKS, victims.said(witness)
    name = f"step-{SAVED:08d}"
    kept = shutil.copytree(victims.ROOT / run / "checkpoints" / name, FOLDER / trained / name)
    base = checkpoint.read_state(kept)["base"]  # with an absolute path, which names the machine
    tiny.reseal(kept, base={**base, "source": str((FOLDER / "base").relative_to(victims.ROOT))})
    losses = [loss for _, loss, _ in victims.losses(victims.ROOT / run)]
    return {"tensors": holdings.read(witness, "saved", SAVED), "rows": victims.rows(witness)[SAVED], "losses": losses[SAVED:]}


if __name__ == "__main__":
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: other versions were tested with it; raise checkpoint.FORMAT if the format is another now")
    make_base(FOLDER / "base")
    tiny.write_rows(FOLDER / "train.jsonl", tiny.texts(40, longest=30))
    files.write_json(FOLDER / "expected.json", {trained: make(trained) for trained in TRAINED})
