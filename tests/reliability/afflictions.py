"""What befalls one rank of a real run at a chosen place: a signal, a STOP file, a stall, an exception, the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

from overtone.finetune import train
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.data import batching
from overtone.finetune.data.cached_samples import Rows
from overtone.finetune.training import evaluation, loop
from overtone.finetune.training.step import Training
from tests import loopback
from tests.reliability import victims

Place = Literal["step", "data", "evaluation", "save"]
STALL_SECONDS = 60.0


@dataclass(frozen=True)
class Affliction:
    rank: int
    place: Place
    """Before a step's work; while its rows are read ahead; between the micro-batches of an evaluation; while a shard is written."""
    number: int
    """At which coming by, from 0, counted in this launch."""
    what: str
    """Names of signals to itself one after the other, or `stop file`, `stall`, `raise`, or a key of `DATA` or `SAMPLES`."""


def begin(witness: Path, argv: list[str], *afflictions: Affliction, size: int = 2) -> list[ForkServerProcess]:
    """The ranks of a run; where one is afflicted it leaves a file `befell-RANK-PLACE`."""
    witness.mkdir(parents=True, exist_ok=True)
    port = loopback.free_port()
    own = [[each for each in afflictions if each.rank == rank] for rank in range(size)]
    return [victims.begin(train_rank, rank, size, port, witness, argv, own[rank]) for rank in range(size)]


def befallen(witness: Path) -> list[str]:
    return sorted(path.name.removeprefix("befell-") for path in witness.glob("befell-*"))


# --- inside the victim


def train_rank(rank: int, size: int, port: int, witness: Path, argv: list[str], afflictions: list[Affliction]) -> None:
    victims.become(rank, size, port, witness)
    victims.draw_no_curve()
    run = Path(argv[argv.index("--run.dir") + 1])
    for each in afflictions:
        afflict(each, witness, run)
    code = train.main(argv)
    os._exit(code)


def afflict(affliction: Affliction, witness: Path, run: Path) -> None:
    """Put it where the run will come by."""
    seen = iter(range(10**9))

    def come_by() -> None:
        if next(seen) == affliction.number:
            (witness / f"befell-{affliction.rank}-{affliction.place}").touch()
            suffer(affliction.what, run)

    if affliction.place == "step":
        before(loop, "train_step", come_by)
    elif affliction.place == "save":
        before(checkpoint.rank_shards, "write_shard", come_by)
    elif affliction.place == "evaluation":
        before(evaluation, "copy_to_device", come_by)
    else:  # an evaluation reads rows ahead too, with a loader of its own
        loader_of = loop.make_loader

        def afflicted(training: Training, rows: Rows) -> batching.Loader:
            loader = loader_of(training, rows)
            before(loader, "turns", come_by)
            return loader

        loop.make_loader = afflicted


def before(owner: Any, name: str, act: Callable[[], object]) -> None:
    original = getattr(owner, name)

    def instead(*arguments: Any) -> Any:
        act()
        return original(*arguments)

    setattr(owner, name, instead)


def suffer(what: str, run: Path) -> None:
    if what == "stall":
        time.sleep(STALL_SECONDS)
    elif what == "raise":
        raise KeyError("a defect")
    elif what == "stop file":
        (run / "STOP").touch()
    elif what in DATA:
        DATA[what](run.with_name("train.jsonl"))
    elif what in SAMPLES:
        [cached] = (run / "cache").glob("train-*.samples")
        SAMPLES[what](cached)
    else:
        for name in what.split():
            victims.send_signal(name)


def rewrite(path: Path) -> None:
    """Other texts of the same lengths, in place, and the old times."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.write(path.read_bytes().translate(SHIFTED))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace(path: Path) -> None:
    """The same by another file under this name."""
    other = path.with_name("other.jsonl")
    other.write_bytes(path.read_bytes().translate(SHIFTED))
    other.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, 5)


def damage(path: Path) -> None:
    """Other bytes in place, as many."""
    with path.open("r+b") as file:
        file.write(bytes(255 - byte for byte in path.read_bytes()))


SHIFTED = bytes.maketrans(b"abcdfghijk", b"bcdfghijka")
"""Without the letters of the key `text`."""
DATA: dict[str, Callable[[Path], None]] = {"rewrite data": rewrite, "truncate data": truncate, "replace data": replace}
"""What befalls the file train.jsonl beside the run's folder."""
SAMPLES: dict[str, Callable[[Path], None]] = {"damage samples": damage, "truncate samples": truncate}
"""What befalls the cache of its samples."""
