"""A disk that is full, broken, or over its quota: earlier checkpoints stay whole, the bytes are told, the config says what then."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.checkpoint import Saver
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.training import loop
from tests.finetune import tiny
from tests.ledger import record
from tests.reliability import victims
from tests.reliability.victims import Fault

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
TOLD = r"saving the checkpoint of step 8 failed .*; it needs [\d,]{6,} bytes at .*checkpoints, [\d,]+ are free"


def failing_at(number: int, error: int) -> Any:
    """Raises at this operation and at no other."""
    count = iter(range(10**6))

    def fail(_: str, __: Path) -> None:
        if next(count) == number:
            raise OSError(error, "injected")

    return fail


def names(run: Path) -> list[str]:
    return [path.name for path in checkpoint.list_checkpoints(run / "checkpoints") if checkpoint.find_problem(path) is None]


def test_an_error_at_any_operation_of_a_save_leaves_earlier_checkpoints_whole(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("checkpoint.every", "2"))
    training, progress = tiny.trained(world, config)
    progress = loop.replace(progress, step=8)
    seen: list[str] = []
    saver = Saver(world, shutil.copytree(config.run.dir, tmp_path / "probe"), 3, asynchronous=True)
    with files.watch(lambda operation, _: seen.append(operation)):
        loop.save(training, progress, saver)
        saver.finish()
    saver.close()
    committing = seen.index("rename")
    assert len(seen) == 14
    tried = 0
    for error in ERRORS:
        for number in range(len(seen)):
            run = shutil.copytree(config.run.dir, tmp_path / f"{error}-{number}")
            saver = Saver(world, run, 3, asynchronous=True)
            with files.watch(failing_at(number, error)), pytest.raises(UserError, match=TOLD):
                loop.save(training, progress, saver)
                saver.finish()
            tried += 1
            new = ["step-00000008"] if number > committing else []
            assert names(run)[: len(new) + 2] == [*new, "step-00000006", "step-00000004"], seen[number]
            assert number > committing or ("step-00000002" in names(run) and files.list_unfinished(run / "checkpoints") == [])
            progress_of_next = loop.replace(progress, step=9)
            loop.save(training, progress_of_next, saver)
            saver.finish()
            saver.close()
            assert names(run)[0] == "step-00000009" and files.list_unfinished(run / "checkpoints") == [], (
                "the next save works, and clears away"
            )
            shutil.rmtree(run)
    record("ENOSPC, EIO or EDQUOT at each disk operation of a save: earlier checkpoints whole, no half left, bytes told", tried)


def arguments(folder: Path, what: str) -> list[str]:
    steps = ["--train.steps", 8, "--checkpoint.every", 2, "--checkpoint.on_failure", what, "--parallel.strategy", "fsdp"]
    return victims.arguments(folder, *steps, "--run.dir", folder / what)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    victims.finish(folder / "witness", 2, arguments(folder, "stop"))
    return folder / "stop"


@pytest.mark.slow
@pytest.mark.ci
def test_a_failing_disk_of_one_rank_lets_the_run_continue_if_configured(tmp_path: Path, whole: Path) -> None:
    """Rank 1 cannot write its file twice in a row; nobody hangs, both are told, the save after that works."""
    codes = victims.wait(victims.start(tmp_path / "witness", 2, arguments(tmp_path, "continue"), Fault(1, 2, 1, errno.ENOSPC)))
    run = tmp_path / "continue"
    assert codes == [0, 0], victims.said(tmp_path / "witness")
    assert len(victims.struck(tmp_path / "witness")) == 2
    failed = victims.events(run, "save failed")
    assert len(failed) == 2 and all("No space left" in event["problem"] or "disk is full" in event["problem"] for event in failed)
    assert names(run)[0] == "step-00000008" and "step-00000004" not in names(run)
    assert victims.losses(run) == victims.losses(whole) and victims.weights(run) == victims.weights(whole)
    assert files.list_unfinished(run / "checkpoints") == []


def test_a_failing_disk_of_one_rank_stops_the_run(tmp_path: Path, whole: Path) -> None:
    codes = victims.wait(victims.start(tmp_path / "witness", 2, arguments(tmp_path, "stop"), Fault(1, 2, 0, errno.EIO)))
    run, message = tmp_path / "stop", victims.said(tmp_path / "witness")
    assert all(code not in (0, None) for code in codes), message
    assert re.search(r"error: saving the checkpoint of step 4 failed \(.*Input/output error.*\); it needs [\d,]+ bytes", message), message
    assert names(run) == ["step-00000002"] and files.list_unfinished(run / "checkpoints") == []
    victims.finish(tmp_path / "witness", 2, arguments(tmp_path, "stop"))
    assert victims.losses(run) == victims.losses(whole) and victims.weights(run) == victims.weights(whole)


def test_a_file_over_the_size_limit_of_the_kernel_fails_the_save(tmp_path: Path, whole: Path) -> None:
    """A limit on the size of a file: the kernel's error, nothing injected."""
    codes = victims.wait(victims.start(tmp_path / "witness", 1, arguments(tmp_path, "stop"), Fault(largest_file=50_000)))
    run, message = tmp_path / "stop", victims.said(tmp_path / "witness")
    assert codes == [2] and "saving the checkpoint of step 2 failed" in message and "File too large" in message, message
    assert "raise the limit (ulimit -f)" in message
    assert names(run) == [] and list((run / "checkpoints").iterdir()) == []
