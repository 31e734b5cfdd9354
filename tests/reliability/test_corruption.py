"""A checkpoint with one wrong byte is not used: random damage to every file, found before a weight is read, and the run falls back."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.distributed.process_group import World
from tests.finetune import tiny
from tests.finetune.checkpointing.test_checkpoint import tensors_of
from tests.ledger import record

Damage = Callable[[Path, random.Random], None]


def truncate(file: Path, chance: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data))])


def flip(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def delete(file: Path, _: random.Random) -> None:
    file.unlink()


def lengthen(file: Path, chance: random.Random) -> None:
    file.write_bytes(file.read_bytes() + chance.choice([b"\0", b"\n", b" ", chance.randbytes(100)]))


def blank(file: Path, chance: random.Random) -> None:
    """A block that the disk has lost."""
    data = bytearray(file.read_bytes())
    start = chance.randrange(len(data))
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    file.write_bytes(data)


def swap(file: Path, _: random.Random) -> None:
    """The same file of an older checkpoint."""
    shutil.copy(file.parent.with_name("step-00000004") / file.name, file)


def exchange(file: Path, chance: random.Random) -> None:
    """Two files of one checkpoint under each other's name."""
    other = chance.choice([path for path in sorted(file.parent.iterdir()) if path != file])
    own, others = file.read_bytes(), other.read_bytes()
    file.write_bytes(others)
    other.write_bytes(own)


def add(file: Path, chance: random.Random) -> None:
    shutil.copy(file, file.with_name(chance.choice(["rank-00003-of-00003.safetensors", ".hidden", "state.json.bak"])))


KINDS: tuple[Damage, ...] = (truncate, flip, delete, lengthen, blank, swap, exchange, add)


def damaged(newest: Path, kinds: tuple[Damage, ...], count: int, chance: random.Random) -> Counter[str]:
    """Damage each file in each way over and over, looking each time; returns how often which kind was tried."""
    whole = {path.name: path.read_bytes() for path in newest.iterdir()}
    tried: Counter[str] = Counter()
    while tried.total() < count:
        for name in sorted(whole):
            for kind in kinds:
                kind(newest / name, chance)
                if {path.name: path.read_bytes() for path in newest.iterdir()} != whole:
                    tried[f"{kind.__name__} {name}"] += 1
                    found, passed_over = checkpoint.find_newest_valid(newest.parents[1])
                    assert found == newest.with_name("step-00000004"), (kind.__name__, name)
                    assert len(passed_over) == 1 and passed_over[0].startswith(f"{newest}: ")
                restore(newest, whole)
    return tried


def restore(folder: Path, whole: dict[str, bytes]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in whole.items():
        (folder / name).write_bytes(data)


def test_any_damage_is_found_and_the_run_falls_back(tmp_path: Path, world: World, capfd: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path, ("checkpoint.every", "2"))
    tiny.trained(world, config)
    newest = checkpoint.find(config.run.dir)
    seed = time.time_ns()
    print(f"seed {seed}")
    tried = damaged(newest, KINDS, 500, random.Random(seed))
    assert checkpoint.find_problem(newest) is None and newest.name == "step-00000006"
    assert len(tried) == 4 * len(KINDS) - 1, "every kind on every file; config.yaml is the same at each step, so swapping it is none"
    record("random damage to any file of a checkpoint: found before a weight is read, the newest good one used", tried.total())

    (tmp_path / "until 4").mkdir()
    shutil.copytree(newest.with_name("step-00000004"), tmp_path / "until 4" / "run" / "checkpoints" / "step-00000004")
    expected, _ = tiny.built(world, config_of(tmp_path, tmp_path / "until 4" / "run"))
    for kind in KINDS:
        copy = shutil.copytree(config.run.dir, tmp_path / kind.__name__ / "run")
        kind(next((copy / "checkpoints" / newest.name).glob("*.safetensors")), random.Random(0))
        capfd.readouterr()
        training, progress = tiny.built(world, config_of(tmp_path, copy))
        assert progress.step == 4 and "warning: skipped " in capfd.readouterr().err
        for name, value in tensors_of(expected).items():
            assert torch.equal(value, tensors_of(training)[name]), name


def config_of(folder: Path, run: Path) -> tiny.Config:
    return tiny.config_in(folder, ("checkpoint.every", "2"), ("run.dir", str(run)))
