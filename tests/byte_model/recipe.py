"""The smallest complete recipe: a byte-level language model without attention. Tests use it if the model does not matter, and copy its
folder to another place to show that a new recipe needs no other change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from overtone.finetune.config import Config, Section
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.recipe import Batch, ExportPlan, Inference, Loaded, Recipe, RecipeState, Sample, Term
from overtone.finetune.storage import files

WIDTH = 15  # odd on purpose: shards of unequal size on 2 and 4 ranks


class Options(Section):
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout in each block."""


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.dropout(self.down(functional.gelu(self.up(self.norm(hidden)))))


class ByteModel(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, 256)
        self.after_next = nn.Linear(WIDTH, 256)
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.embedding(tensors["ids"])
        for block in self.blocks:
            hidden = block(hidden)
        hidden = hidden * self.scale
        return {
            "next": summed_loss(self.head(hidden[:, :-1]), tensors["labels"][:, 1:]),
            "after_next": summed_loss(self.after_next(hidden[:, :-2]), tensors["labels"][:, 2:]),
        }


class ByteModelState(RecipeState):
    width: int
    """Of the embedding."""


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


def write_base(folder: Path, seed: int = 0) -> Path:
    """A random base in the layout of all recipes: config.json and model.safetensors."""
    from safetensors.torch import save

    torch.manual_seed(seed)
    tensors = {name: value for name, value in ByteModel(0.0).state_dict().items() if name != "scale"}
    files.write_json(folder / "config.json", {"width": WIDTH})
    files.write_bytes(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    return folder


def load(config: Config[Options]) -> Loaded:
    with torch.device("meta"):
        model = ByteModel(config.options.dropout)
    model.register_buffer("scale", torch.zeros(()))
    base = resolve_source(config.model.source, config.model.revision)
    return Loaded(model, None, (Block,), base, buffers={"scale": torch.ones(())}, state=ByteModelState(width=WIDTH))


def read(row: dict[str, Any], processor: Any, folder: Path) -> Sample:
    text = row.get("text")
    if not isinstance(text, str) or len(text.encode()) < 3:
        raise UserError(f"text must hold at least three bytes, found {text!r}")
    return {"ids": torch.tensor(list(text.encode()))}


def collate(samples: list[Sample]) -> Batch:
    longest = max(len(sample["ids"]) for sample in samples)
    ids = torch.stack([functional.pad(sample["ids"], (0, longest - len(sample["ids"]))) for sample in samples])
    labels = torch.stack([functional.pad(sample["ids"], (0, longest - len(sample["ids"])), value=-100) for sample in samples])
    targets = {"next": sum(len(sample["ids"]) - 1 for sample in samples), "after_next": sum(len(sample["ids"]) - 2 for sample in samples)}
    return Batch({"ids": ids, "labels": labels}, targets)


def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
    sums = model(batch.tensors)
    return {"next": Term(sums["next"], 1.0), "after_next": Term(sums["after_next"], 0.3)}


def export(base: Path, state: ByteModelState, buffers: dict[str, Tensor], form: str) -> ExportPlan:
    return ExportPlan(files={"config.json": json.dumps({"width": state.width, "scale": float(buffers["scale"])}).encode()})


def generate(folder: Path, argv: list[str]) -> int:
    print(f"{folder.name} says nothing")
    return 0


RECIPE = Recipe(
    Options=Options,
    load=load,
    read=read,
    length=lambda sample: len(sample["ids"]),
    collate=collate,
    loss=loss,
    export=export,
    formats=("plain",),
    inference=Inference(generate=generate),
    State=ByteModelState,
    lora_targets=r"blocks\.\d+\.(up|down)|head|after_next",
)
