"""A tiny CSM, rows for it, and what the stock class of transformers says about both."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from overtone.finetune.config import Config, resolve
from overtone.finetune.data.context_rows import find_earlier_rows, read_with_context
from overtone.finetune.modeling.loading import materialise
from overtone.finetune.recipe import Batch, Loaded, Sample
from overtone.recipes.csm.recipe import RECIPE

BOOKS, CODES = 4, 32
TEXTS = ("She counted the boats.", "It is never late, is it?")


def make_rows(speakers: list[str], frames: tuple[int, int] = (9, 6)) -> list[dict[str, Any]]:
    """Each speaker says two texts, each time with other random codes and another length, so that both conditions matter."""
    chance, rows = np.random.RandomState(0), []
    for number, speaker in enumerate(speakers):
        for text, count in zip(TEXTS, frames, strict=True):
            codes = chance.randint(1, CODES, (count + 3 * number, BOOKS)).tolist()
            place = {"source": f"{speaker}.wav", "start": float(len(rows)), "end": len(rows) + 0.9}
            row = {"audio": f"{speaker}.wav", "text": text, "speaker": speaker, "language": "english"}
            rows.append({**row, **place, "audio_codes": codes})
    return rows


def make_conversation(speakers: list[str], clips: int = 6) -> list[dict[str, Any]]:
    """Clips of one recording in which the speakers take turns."""
    chance, rows = np.random.RandomState(1), []
    for number in range(clips):
        codes = chance.randint(1, CODES, (5 + number, BOOKS)).tolist()
        place = {"source": "talk.wav", "start": 2.0 * number, "end": 2.0 * number + 1.5}
        row = {"audio": f"{number}.wav", "text": f"{TEXTS[number % 2]} {number}", "speaker": speakers[number % len(speakers)]}
        rows.append({**row, **place, "language": "english", "audio_codes": codes})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_config(base: Path, train: Path, *overrides: tuple[str, str]) -> Config[Any]:
    given = {"model.source": base, "data.train": train, "run.dir": train.parent / "run"}
    return resolve("csm", RECIPE.Options, [], [*((key, json.dumps(str(value))) for key, value in given.items()), *overrides])


@dataclass(frozen=True)
class ReadyCsm:
    """The recipe's model with its weights, and its data as samples."""

    config: Config[Any]
    loaded: Loaded
    samples: list[Sample]

    @property
    def model(self) -> Any:
        return self.loaded.model

    @property
    def batch(self) -> Batch:
        return RECIPE.collate(self.samples)


def make_ready(folder: Path, base: Path, rows: list[dict[str, Any]], *overrides: tuple[str, str]) -> ReadyCsm:
    config = make_config(base, write_rows(folder / "train.jsonl", rows), *overrides)
    RECIPE.prepare(config)
    loaded = RECIPE.load(config)
    materialise(loaded.model, loaded.base, loaded.buffers, torch.device("cpu"), config.run.seed)
    earlier = find_earlier_rows(folder / "train.jsonl", RECIPE, config.options)
    return ReadyCsm(config, loaded, [read_with_context(RECIPE, loaded.processor, row, folder, earlier) for row in rows])


@dataclass(frozen=True)
class LearnedCsm:
    """A model that has memorized its clips."""

    ready: ReadyCsm
    rows: list[dict[str, Any]]
    folder: Path
    """Its export."""
    stock: Any
    """The export in transformers' own class."""


def means(model: Any, batch: Batch) -> dict[str, float]:
    with torch.no_grad():
        return {name: term.sum.item() / batch.targets[name] for name, term in RECIPE.loss(model, batch).items()}


def weighted_loss(model: Any, batch: Batch) -> Tensor:
    terms = RECIPE.loss(model, batch)
    return torch.stack([term.weight * term.sum / batch.targets[name] for name, term in terms.items()]).sum()


def memorize(ready: ReadyCsm, steps: int = 150) -> None:
    """Plain AdamW until nearly every guess is right."""
    optimizer = torch.optim.AdamW(ready.model.parameters(), lr=1e-2, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        weighted_loss(ready.model, ready.batch).backward()
        torch.nn.utils.clip_grad_norm_(ready.model.parameters(), 1.0)
        optimizer.step()


def export(ready: ReadyCsm, folder: Path) -> Path:
    """Carry out the export plan in memory."""
    base, trained = ready.loaded.base, ready.model.state_dict()
    plan = RECIPE.export(base, ready.loaded.state, {}, "transformers")
    stored = {name: tensor for path in sorted(base.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    folder.mkdir(parents=True)
    tensors = {name: trained.get(name, tensor).contiguous() for name, tensor in stored.items() if plan.keep(name)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, data in plan.files.items():
        (folder / name).write_bytes(data)
    for name in plan.copy:
        (folder / name).write_bytes((base / name).read_bytes())
    return folder


def load_stock(folder: Path) -> Any:
    """transformers' own class."""
    from transformers import CsmForConditionalGeneration

    return CsmForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def call_stock(stock: Any, sample: Sample, labels: Tensor | None = None, **arguments: Any) -> Any:
    """The stock class's output for one sample, whose labels [S, C] are by default those that its processor makes: all frames."""
    ids, codes = sample["ids"], sample["codes"]
    embedded = stock.embed_text_tokens(ids)[None].clone()
    embedded[0, find_frames(sample)] = stock.backbone_model.embed_tokens(codes[None])[0]
    return stock(inputs_embeds=embedded, labels=(make_labels(sample) if labels is None else labels)[None], **arguments)


def find_frames(sample: Sample) -> Tensor:
    """The positions of all frames, by the text ids of a frame and of the end frame."""
    return torch.isin(sample["ids"], torch.unique(sample["ids"][-2:])).nonzero().flatten()


def make_labels(sample: Sample) -> Tensor:
    """-100 for the text and for frames that are only context, the codes for the frames."""
    labels = torch.full((len(sample["ids"]), BOOKS), -100)
    labels[find_frames(sample)] = sample["codes"]
    for turn, (text, frames, trained) in enumerate(sample["turns"].tolist()):
        if not trained:
            labels[int(sample["turns"][:turn, :2].sum()) :][: text + frames] = -100
    return labels


def generate_greedily(stock: Any, prompt: Tensor, frames: int = 40) -> list[list[int]]:
    """Codes [T, C] by the stock class's own `generate`, without the end frame; `frames` of them if speech does not end."""
    found = stock.generate(input_ids=prompt[None], do_sample=False, depth_decoder_do_sample=False, max_new_tokens=frames)[0]
    ended = (found[:, :-1] == 0).all(1).nonzero().flatten().tolist()
    return found[: ended[0] if ended else None].tolist()
