"""Runs under Python's audit hook, forked (`train_rank`, `export_once`) or launched: audited.py FOLDER VERB ARGUMENTS …

Each process leaves FOLDER/VERB-PID.jsonl: what could run code that came as data, and who asked for it. The first lines are a trial of the
hooks.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

HARMFUL_FILES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".npy", ".npz")
TRIAL = ["pickle.find_class", "open", "torch.load", "open"]
OWN = Path(__file__).name


def audit(path: Path) -> None:
    """From now on, note each class that an unpickler looks up, each file of a kind that holds pickles, and each use of torch.load."""

    def note(what: str, subject: str) -> None:
        # Straight to the descriptor: `open` would be audited too.
        line = json.dumps({"what": what, "subject": subject, "by": callers()})
        os.write(descriptor, f"{line}\n".encode())

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            note(event, ".".join(map(str, arguments)))
        elif event == "open" and str(arguments[0]).endswith(HARMFUL_FILES):
            note(event, str(arguments[0]))

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(hook)
    watch_torch_load(note)
    try_hooks(path.with_name(f".{path.stem}.pt"))


def try_hooks(path: Path) -> None:
    """Each of `TRIAL` once."""
    import torch

    pickle.loads(pickle.dumps(Path))
    path.write_bytes(b"")
    with contextlib.suppress(EOFError):
        torch.load(path, weights_only=True)
    path.unlink()


def watch_torch_load(note: Callable[[str, str], None]) -> None:
    """torch's restricted unpickler is Python of its own, which the interpreter's audit does not see."""
    import torch

    load = torch.load

    def noted(file: Any, *rest: Any, **options: Any) -> Any:
        note("torch.load", str(file))
        return load(file, *rest, **options)

    torch.load = noted


def callers() -> list[str]:
    """The innermost places outside of this file."""
    frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).name != OWN]
    return [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.name}" for frame in frames[-4:]]


def found(folder: Path, verb: str) -> list[list[dict[str, Any]]]:
    """What each process of a verb did; the hooks' own trial, which must be there, is left out."""
    notes = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.glob(f"{verb}-*.jsonl"))]
    assert all([note["what"] for note in of_process[: len(TRIAL)]] == TRIAL for of_process in notes), "the hooks see what they should"
    return [of_process[len(TRIAL) :] for of_process in notes]


def train_rank(rank: int, size: int, port: int, witness: Path, argv: list[str]) -> None:
    from overtone.finetune import train
    from tests.reliability import victims

    victims.become(rank, size, port, witness)
    audit(witness / f"train-{os.getpid()}.jsonl")
    os._exit(train.main(argv))


def export_once(witness: Path, argv: list[str]) -> None:
    from overtone.finetune.cli import export
    from tests.reliability import victims

    victims.become(0, 1, 0, witness)
    audit(witness / f"export-{os.getpid()}.jsonl")
    os._exit(export.main(argv))


if __name__ == "__main__":
    folder, verb, *arguments = sys.argv[1:]
    audit(Path(folder) / f"{verb}-{os.getpid()}.jsonl")
    from overtone.finetune.__main__ import console

    sys.argv = ["finetune", verb, *arguments]
    sys.exit(console())
