"""What a run holds where it saves and after it has loaded: digests of whole tensors, put together by torch from all ranks' shards.

Nothing of the product reads or writes them here, so that a slice which saving forgets, or loading misplaces, shows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from overtone.finetune import train
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.training import run
from tests import loopback
from tests.reliability import victims

Digests = dict[str, str]


def begin(witness: Path, size: int, argv: list[str]) -> list[ForkServerProcess]:
    """The ranks of a run that leaves `saved-STEP.json` for each save and `loaded-STEP.json` for what it starts from."""
    witness.mkdir(parents=True, exist_ok=True)
    port = loopback.free_port()
    return [victims.begin(train_rank, rank, size, port, witness, argv) for rank in range(size)]


def read(witness: Path, kind: str, step: int) -> Digests:
    digests: Digests = json.loads((witness / f"{kind}-{step}.json").read_text())
    return digests


# --- inside the run


def train_rank(rank: int, size: int, port: int, witness: Path, argv: list[str]) -> None:
    victims.become(rank, size, port, witness)
    victims.draw_no_curve()
    victims.note_rows(witness / f"rows-{rank}.jsonl")
    note_saves(rank, witness)
    note_load(rank, witness)
    os._exit(train.main(argv))


def note_saves(rank: int, witness: Path) -> None:
    begin_save = checkpoint.Saver.begin

    def noted(saver: checkpoint.Saver, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], config: str) -> None:
        note(rank, witness / f"saved-{step}.json", tensors, state["optimizer_steps"])
        begin_save(saver, step, tensors, state, config)

    checkpoint.Saver.begin = noted  # type: ignore[method-assign]


def note_load(rank: int, witness: Path) -> None:
    fit = run.fit

    def noted(training: Any, progress: Any, *rest: Any) -> Any:
        if progress.step:
            counts = {float(state["step"]) for state in training.optimizer.state.values() if "step" in state}
            assert len(counts) == 1, "one count for all parameters"
            tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
            note(rank, witness / f"loaded-{progress.step}.json", tensors, int(counts.pop()))
        return fit(training, progress, *rest)

    run.fit = noted


def note(rank: int, path: Path, tensors: Mapping[str, Tensor], updates: int) -> None:
    whole = {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}
    if rank == 0:
        path.write_text(json.dumps({"updates": str(updates)} | {name: digest(tensor) for name, tensor in whole.items()}))


def digest(tensor: Tensor) -> str:
    """Type, shape and every bit; all zeros have a word of their own, since a lost slice would look like them."""
    if tensor.numel() and not tensor.any():
        return f"zeros {tensor.dtype} {tuple(tensor.shape)}"
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data).hexdigest()}"
