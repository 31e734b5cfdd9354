"""Saved with matrices that ranks share, resumed without, and the other way round: the same bits loaded, the same losses; exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.cli import export
from tests.causal_lm.recipe import write_base, write_texts
from tests.launch.launching import ROOT
from tests.reliability import holdings, victims

SAVED, STEPS = 3, 8
LARGEST = 1e-6
"""Relative difference of a loss on another layout."""


class Ranks(NamedTuple):
    """A world and how many of its ranks share a matrix."""

    world: int
    tensor: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Qwen3 whose halves of an MLP are odd, so that both ways of cutting leave uneven pieces; and ragged text."""
    folder = tmp_path_factory.mktemp("tensor")
    write_base(folder / "base", "qwen3")
    write_texts(folder / "train.jsonl")
    return folder


def train(folder: Path, name: str, ranks: Ranks) -> Path:
    argv = [
        "--recipe", ROOT / "tests" / "causal_lm", "--model.source", folder / "base", "--data.train", folder / "train.jsonl",
        "--run.dir", folder / name / "run", "--train.steps", STEPS, "--train.lr", 1e-3, "--train.global_batch_tokens", 150,
        "--train.micro_tokens", 70, "--train.precision", "fp32", "--checkpoint.every", SAVED, "--checkpoint.keep", STEPS,
        "--parallel.strategy", "fsdp", "--parallel.tensor", ranks.tensor, "--log.trackers", "[]",
    ]  # fmt: skip
    codes = victims.wait(holdings.begin(folder / name / "witness", ranks.world, [str(word) for word in argv]))
    assert codes == [0] * ranks.world, victims.said(folder / name / "witness")
    return folder / name


def whole(folder: Path, ranks: Ranks) -> Path:
    """An uninterrupted run, made once."""
    name = f"{ranks.world}-{ranks.tensor}"
    return folder / name if (folder / name).is_dir() else train(folder, name, ranks)


def check_pair(folder: Path, saved: Ranks, resumed: Ranks) -> None:
    before = whole(folder, saved)
    name, only = f"{saved}-{resumed}", f"step-{SAVED:08d}"
    shutil.copytree(before / "run" / "checkpoints" / only, folder / name / "run" / "checkpoints" / only)
    after = train(folder, name, resumed)
    held, loaded = holdings.read(before / "witness", "saved", SAVED), holdings.read(after / "witness", "loaded", SAVED)
    assert loaded == held and len(held) > 60
    assert not [name for name, digest in held.items() if digest.startswith("zeros")], "a slice that is lost would look like these"
    pairs = [*zip(victims.losses(after / "run"), victims.losses(before / "run")[SAVED:], strict=True)]
    assert len(pairs) == STEPS - SAVED and all(one[0] == other[0] for one, other in pairs)
    assert max(abs(one[1] - other[1]) / other[1] for one, other in pairs) <= LARGEST


@pytest.mark.slow
def test_a_tensor_parallel_run_resumes_without_tensor_parallelism(folder: Path) -> None:
    check_pair(folder, Ranks(2, 2), Ranks(2, 1))


@pytest.mark.slow
def test_each_value_is_written_once(folder: Path) -> None:
    """What neighbours hold alike is written by one of them, and together the files are exactly the tensors."""
    saved = whole(folder, Ranks(2, 2)) / "run" / "checkpoints" / f"step-{SAVED:08d}"
    files = sorted(saved.glob("*.safetensors"))
    with rank_shards.open_shards(saved) as (_, shapes):
        elements = sum(torch.Size(shape).numel() for shape in shapes.values())
    sizes = [sum(tensor.numel() for tensor in load_file(path).values()) for path in files]
    assert sum(sizes) == elements and len(files) == 2 and max(sizes) < 0.6 * elements


@pytest.mark.slow
def test_tensor_parallel_weights_are_exported_whole(folder: Path, tmp_path: Path) -> None:
    run = whole(folder, Ranks(2, 2)) / "run"
    assert export.main([str(run), "--to", str(tmp_path / "out"), "--dtype", "fp32"]) == 0
    exported = load_file(tmp_path / "out" / "model.safetensors")
    held = holdings.read(run.parent / "witness", "saved", STEPS)
    assert {name: holdings.digest(tensor) for name, tensor in exported.items()} == {name: held[name] for name in exported}
    assert len(exported) > 20 and checkpoint.find_problem(run / "checkpoints" / f"step-{STEPS:08d}") is None


@pytest.mark.slow
def test_any_layout_resumes_from_any(folder: Path) -> None:
    layouts = [Ranks(1, 1), Ranks(2, 2), Ranks(4, 2), Ranks(4, 1)]
    pairs = [(saved, resumed) for saved in layouts for resumed in layouts if 2 in (saved.tensor, resumed.tensor)]
    assert len(pairs) == 12
    for saved, resumed in pairs:
        if (saved, resumed) != (Ranks(2, 2), Ranks(2, 1)):
            check_pair(folder, saved, resumed)
