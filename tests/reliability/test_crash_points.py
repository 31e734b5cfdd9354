"""Every operation on the disk of one save with its pruning, and of one export, is once the last that a process does."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.distributed.process_group import World
from overtone.finetune.exporting import export
from overtone.finetune.storage import files
from tests.finetune import tiny
from tests.ledger import record
from tests.reliability import victims
from tests.reliability.victims import Fault

EVERY, STEPS = 2, 6
SAVE = ["mkdir", *["write", "sync"] * 4, "sync", "rename", "sync", "rename", "remove"]
"""Folder; tensors, config, state, manifest; the folder itself; the commit; its parent; the oldest made trash and removed."""
EXPORT = ["mkdir", *["write", "sync"] * 4, "sync", "rename", "sync"]
"""Folder; weights, config, model card, record of the export; the folder itself; the commit; its parent."""


def arguments(folder: Path, keep: int = 2) -> list[str]:
    steps = ["--train.steps", STEPS, "--checkpoint.every", EVERY, "--checkpoint.keep", keep]
    return victims.arguments(folder, *steps, "--run.dir", folder / "run")


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run` went through; `half` is what it was after the checkpoint of step 4."""
    folder = tmp_path_factory.mktemp("whole")
    victims.finish(folder / "witness", 1, arguments(folder, keep=3))
    half = shutil.copytree(folder / "run", folder / "half")
    shutil.rmtree(half / "checkpoints" / "step-00000006")
    assert [path.name for path in checkpoint.list_checkpoints(half / "checkpoints")] == ["step-00000004", "step-00000002"]
    return folder


def deaths(operations: list[str]) -> Iterator[Fault]:
    """Before each operation, and in the middle of those that have one. After an operation is before the next."""
    for number, operation in enumerate(operations):
        yield Fault(number=number)
        if operation in ("sync", "remove"):
            yield Fault(number=number, torn=True)


def in_pairs(faults: Iterator[Fault]) -> Iterator[list[Fault]]:
    while pair := list(itertools.islice(faults, 2)):
        yield pair


@pytest.mark.ci
@pytest.mark.slow
def test_a_save_killed_at_any_disk_operation_resumes_exactly(whole: Path, tmp_path: Path, world: World) -> None:
    def victim(fault: Fault | None, number: int) -> tuple[Path, list[victims.ForkServerProcess]]:
        folder = tmp_path / str(number)
        shutil.copytree(whole / "half", folder / "run")
        for name in ("base", "train.jsonl"):
            (folder / name).symlink_to(whole / name)
        return folder, victims.start(folder / "witness", 1, arguments(folder), fault)

    folder, ranks = victim(None, 0)
    assert victims.wait(ranks) == [0], victims.said(folder / "witness")
    seen = victims.operations(folder / "witness")
    assert seen == SAVE and len(seen) == 14
    committing = SAVE.index("rename")
    tried = 0
    for pair in in_pairs(deaths(SAVE)):
        dying = [(fault, *victim(fault, tried + number + 1)) for number, fault in enumerate(pair)]
        for fault, folder, ranks in dying:
            assert victims.wait(ranks) == [-9] and len(victims.struck(folder / "witness")) == 1
            tried += 1
            run = folder / "run"
            good = [path.name for path in checkpoint.list_checkpoints(run / "checkpoints") if checkpoint.find_problem(path) is None]
            committed = ["step-00000006"] if fault.number > committing else []
            assert good[: len(committed) + 1] == [*committed, "step-00000004"], fault
            assert (run / "checkpoints" / "step-00000002").exists() == (fault.number <= SAVE.index("rename", committing + 1)), fault
            tiny.trained(world, tiny.config_in(folder, *overrides(arguments(folder))))
            assert victims.weights(run) == victims.weights(whole / "run"), fault
            assert files.list_unfinished(run / "checkpoints") == [], fault
            tiny.let_go(run)
    assert tried == len(SAVE) + SAVE.count("sync") + SAVE.count("remove") == 21
    record(
        "a save with its pruning, dead before or in the middle of each disk operation: resumed as if it had not",
        tried,
        0,
        f"{len(SAVE)} operations",
    )


def overrides(argv: list[str]) -> list[tuple[str, str]]:
    return [(key[2:], value) for key, value in zip(argv[::2], argv[1::2], strict=True) if "." in key]


def test_an_export_killed_at_any_disk_operation_can_be_repeated(whole: Path, tmp_path: Path) -> None:
    run, before = whole / "run", content(whole / "run")
    exported = content(export.export(run, tmp_path / "whole" / "exports" / "model"))
    tried = 0

    def victim(fault: Fault, number: int) -> tuple[Path, victims.ForkServerProcess]:
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole" / "exports" / "model", folder / "exports" / "older")
        return folder, victims.begin(victims.export_once, folder, run, folder / "exports" / "model", fault)

    folder, process = victim(Fault(within="exports"), 0)
    assert victims.wait([process]) == [0], victims.said(folder)
    assert victims.operations(folder) == EXPORT and len(EXPORT) == 12
    for pair in in_pairs(deaths(EXPORT)):
        dying = [(fault, *victim(replace(fault, within="exports"), tried + number + 1)) for number, fault in enumerate(pair)]
        for fault, folder, process in dying:
            assert victims.wait([process]) == [-9] and len(victims.struck(folder)) == 1
            tried += 1
            target = folder / "exports" / "model"
            assert target.exists() == (fault.number > EXPORT.index("rename")), fault
            if not target.exists():
                export.export(run, target)
            assert content(target) == content(target.with_name("older")) == exported, fault
            assert sorted(path.name for path in target.parent.iterdir()) == ["model", "older"], fault
    assert tried == len(EXPORT) + EXPORT.count("sync") == 18
    assert content(run) == before
    record(
        "an export, dead before or in the middle of each disk operation: no folder or the whole one, and it can be made again",
        tried,
        0,
        f"{len(EXPORT)} operations",
    )
