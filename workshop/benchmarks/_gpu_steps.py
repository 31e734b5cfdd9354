"""Training steps of one model with each lever in turn: a row for each version, of speed, model FLOP utilisation and memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from overtone.finetune.config import Config, resolve
from overtone.finetune.data import batching, sample_serialization
from overtone.finetune.data.batching import Order, RankBatch
from overtone.finetune.distributed.sharding import choose_strategy
from overtone.finetune.hardware.gpu_specs import GPUS, make_cluster
from overtone.finetune.planning.activation_memory import Recomputing
from overtone.finetune.planning.memory import Arrangement
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.planning.parallelism_planner import estimate_layout
from overtone.finetune.recipe import Recipe, find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.finetune.training import setup
from overtone.finetune.training.step import Training, make_loader, train_step
from overtone.recipes.language.modeling import causal_model
from workshop.benchmarks import _gpu
from workshop.benchmarks._gpu import Bench, Scale
from workshop.benchmarks._heads import WholeLogits

GIB = 2**30
NOT_HERE = "–"
RECIPES = {"chat": "llm_sft", "voice": "voice_clone"}


@dataclass(frozen=True)
class Version:
    """One way of computing the same step."""

    name: str
    even: bool = False
    """Chats that are all of the longest length, in place of mixed ones."""
    whole_logits: bool = False
    """Logits of all positions at once, as the models' own forward makes them, in place of the loss head's chunks."""
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of the config."""

    def but(self, name: str, keys: dict[str, str]) -> Version:
        """The next version: this one with some keys changed."""
        return replace(self, name=name, keys=self.keys | keys)


SPEED = ("tokens / s", "TFLOP / s", "MFU", "of the ceiling", "peak, GiB", "plan, GiB", "peak / plan", "lasting, bytes / parameter")
"""Columns of a step, after those that name it."""


def chat_versions() -> list[Version]:
    """From what a plain loop does to all that there is, then sequences that need no packing."""
    keys = {"data.packing": "false", "options.attention": "sdpa", "train.activation_checkpointing": "full"}
    padded = Version("padded, whole logits, everything recomputed", whole_logits=True, keys=keys)
    packed = padded.but("packed, under a mask", {"data.packing": "true"})
    apart = packed.but("attention of each sample apart", {"options.attention": "varlen"})
    chunked = replace(apart, name="loss in chunks", whole_logits=False)
    selective = chunked.but("products and attention kept", {"train.activation_checkpointing": "selective"})
    kept = selective.but("nothing recomputed", {"train.activation_checkpointing": "none"})
    gathered = kept.but("the same, each block gathered anew (fsdp)", {"parallel.strategy": "fsdp"})
    liger = kept.but("Liger's fused loss", {"options.loss_head": "liger"})
    compiled = kept.but("compiled", {"options.attention": "auto", "train.compile": "true"})
    even = replace(kept.but("even: one sample a row", {"data.packing": "false", "options.attention": "sdpa"}), even=True)
    return [
        padded,
        packed,
        apart,
        chunked,
        selective,
        kept,
        gathered,
        liger,
        compiled,
        even,
        even.but("even, compiled", {"train.compile": "true"}),
    ]


def voice_versions() -> list[Version]:
    recomputed = Version("everything recomputed", keys={"train.activation_checkpointing": "full", "train.micro_tokens": "4096"})
    kept = recomputed.but("nothing recomputed", {"train.activation_checkpointing": "none"})
    return [recomputed, kept, kept.but("sub_frames 1/4", {"options.sub_frames": "0.25"}), kept.but("compiled", {"train.compile": "true"})]


@contextmanager
def levers(version: Version) -> Iterator[None]:
    """While open, models are built with what this version has off."""
    if not version.whole_logits:
        yield
        return
    with mock.patch.object(causal_model, "choose_loss_head", lambda _: WholeLogits):
        yield


@dataclass(frozen=True)
class Measured:
    """A version's optimizer step."""

    seconds: float
    """Median."""
    turns: list[RankBatch]
    cells: list[str]
    """Under `SPEED`."""


def measure(bench: Bench, kind: str, version: Version) -> Measured:
    """Builds the run of a version and trains some steps."""
    recipe = load_recipe(find_recipe(RECIPES[kind]))
    config = config_of(kind, version, bench.folder, bench.scale, recipe, bench.fresh(f"{kind} {version.name}"))
    with levers(version):
        plan = planned(config, recipe)
        training, _ = setup.build(config, recipe, bench.joined())
    turns, flops = (chat_step if kind == "chat" else voice_step)(training, version, bench.scale)
    tokens = sum(turn.micro.tokens for turn in turns)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds = _gpu.seconds_of(lambda: train_step(training, turns, step=0), bench.scale.rounds)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    speed = [f"{tokens / seconds:,.0f}", *utilisation(flops / seconds, ceiling(bench))]
    return Measured(seconds, turns, [*speed, *memory(plan, parameters)])


def config_of(kind: str, version: Version, folder: Path, scale: Scale, recipe: Recipe, run: Path) -> Config:
    given = {
        "model.source": folder / kind / "base", "data.train": folder / kind / "train.jsonl", "run.dir": run,
        "train.micro_tokens": scale.micro, "train.global_batch_tokens": 10**6, "train.steps": 10**6,
        "train.compile": "false",  # `auto` would compile the blocks of every version on a GPU, since this run is a long one
    }  # fmt: skip
    return resolve(RECIPES[kind], recipe.Options, [], [(key, str(value)) for key, value in (given | version.keys).items()])


def planned(config: Config, recipe: Recipe) -> int:
    """Bytes that `overtone plan` says torch will allocate at the peak."""
    work = estimate_run(config, recipe).work
    recomputing: Recomputing = config.train.activation_checkpointing
    return estimate_layout(
        work, make_cluster("h200", 1, 1), Arrangement(choose_strategy(config.parallel, config.train, {}), 1), recomputing
    ).memory.allocated


class RandomChats:
    """In place of `Rows`: token ids of samples, for the loader to pack, pad and pin them as in training."""

    def __init__(self, ids: list[Tensor]) -> None:
        self._ids, self.lengths = ids, [len(one) for one in ids]

    def announce(self, _: tuple[int, ...]) -> None:
        """They are in memory."""

    def sample(self, row: int) -> bytes:
        """A record of the sample cache; every position is supervised."""
        ids = self._ids[row]
        return sample_serialization.encode({"ids": ids, "supervised": torch.ones(len(ids), dtype=torch.bool)})

    def predict(self, _: int) -> None:
        """No reference was computed for these rows."""


def chat_step(training: Training, version: Version, scale: Scale) -> tuple[list[RankBatch], float]:
    """One optimizer step's micro-batches of random chats, and the model FLOPs of them."""
    model, chance = training.model, np.random.default_rng(0)
    mixed = np.clip(chance.lognormal(np.log(scale.sequence / 5), 0.9, scale.chats), 8, scale.sequence)
    lengths = (np.full(max(2, scale.chats // 3), scale.sequence) if version.even else mixed).astype(np.int64)
    train, packing = training.config.train, training.config.data.packing
    micros = batching.micro_batches(Order(0, 1024, train.micro_tokens, 10**9, packing), lengths, epoch=0, window=0)
    words = int(model.vocabulary)
    rows: Any = RandomChats([torch.from_numpy(chance.integers(0, words, length)) for length in lengths.tolist()])
    loader = make_loader(training, rows)
    turns = loader.turns(tuple(micros))
    loader.close()
    shape: Any = model.config
    attention = 12 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim * float((lengths**2).sum())
    looked_up = 0 if shape.tie_word_embeddings else words * shape.hidden_size
    return turns, 6 * (multiplied(model) - looked_up) * float(lengths.sum()) + attention


def multiplied(*modules: nn.Module) -> int:
    """Parameters of at least two dimensions; a tied one counts once."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters() if parameter.dim() > 1)


def voice_step(training: Training, _: Version, __: Scale) -> tuple[list[RankBatch], float]:
    """All clips as one optimizer step, and the model FLOPs of them."""
    order = training.order
    step = next(batching.steps(order, training.rows.lengths, batching.Place(), epochs=None))
    loader = make_loader(training, training.rows)
    turns = loader.turns(step.micros)
    loader.close()
    frames = sum(int(turn.batch.tensors["frame_mask"].sum()) for turn in turns)
    return turns, flops_of_voice(training.model, training.rows.lengths.astype(np.float64), frames)


def flops_of_voice(model: Any, lengths: Any, frames: int) -> float:
    """Return the operations of clips of these positions with so many frames in all. Of a share of the frames the predictor learns from,
    only these count."""
    talker, predictor = model.talker, model.talker.code_predictor
    by_talker = multiplied(talker.model.layers, talker.text_projection, talker.codec_head)
    by_predictor = multiplied(predictor.model.layers, predictor.small_to_mtp_projection)
    learned = model.sub_frames * frames
    products = by_talker * lengths.sum() + learned * (16 * by_predictor + multiplied(predictor.lm_head))
    return 6 * products + per_pair(talker.config) * (lengths**2).sum() + per_pair(predictor.config) * learned * 16**2


def per_pair(shape: Any) -> float:
    """12·L·H·Q."""
    return 12.0 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim


def utilisation(speed: float, ceiling: float | None) -> list[str]:
    """TFLOP a second, of the data sheet's, of the measured ceiling. `speed` and `ceiling` in FLOP a second."""
    peak = sheet_speed()
    return [f"{speed / 1e12:.4g}", f"{speed / peak:.1%}" if peak else NOT_HERE, f"{speed / ceiling:.1%}" if ceiling else NOT_HERE]


def sheet_speed() -> float | None:
    """Dense bf16 FLOP a second of this GPU, if it is a known one."""
    name = torch.cuda.get_device_name().lower() if torch.cuda.is_available() else ""
    return next((1e12 * gpu.speed for known, gpu in GPUS.items() if known.partition("-")[0] in name.split()), None)


def memory(plan: int, parameters: int) -> list[str]:
    """Peak beside plan, and what is allocated between two steps."""
    if not torch.cuda.is_available():
        return [NOT_HERE, f"{plan / GIB:.2f}", NOT_HERE, NOT_HERE]
    peak, lasting = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    return [f"{peak / GIB:.2f}", f"{plan / GIB:.2f}", f"{peak / plan:.2f}", f"{lasting / parameters:.2f}"]


def ceiling(bench: Bench) -> float:
    """FLOP a second of one large product in the compute type; measured once for each card and torch, and kept in the folder."""
    path, here = bench.folder / "ceiling.json", _gpu.circumstances(bench.dry)
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if found.get("circumstances") != here:
        size, many = bench.scale.product, 20
        left, right = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
        seconds = _gpu.seconds_of(lambda: [left @ right for _ in range(many)], bench.scale.rounds) / many
        found = {"speed": 2 * size**3 / seconds, "circumstances": here}
        files.write_json(path, found)
    return float(found["speed"])


def ceiling_row(bench: Bench) -> list[str]:
    """Under the columns of the versions."""
    size, speed = bench.scale.product, ceiling(bench)
    return [f"one product of {size} × {size} matrices, bf16", NOT_HERE, *utilisation(speed, speed), *4 * [NOT_HERE]]
