"""Worker options of both verbs that have them. test_ray_pool.py tests Ray."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from overtone.data_prep.cli import codes
from overtone.data_prep.parallel import worker_options
from overtone.data_prep.parallel.worker_options import WorkerFlags, WorkerOptions
from overtone.finetune.errors import UserError


def test_worker_options_are_parsed_and_checked() -> None:
    options = argparse.ArgumentParser(allow_abbrev=False)
    worker_options.add_options(options, "the model")

    def read(*argv: str) -> WorkerFlags:
        return worker_options.read_flags(options.parse_args(argv))

    assert read() == WorkerFlags(), "the defaults are the same"
    with worker_options.open_workers(read(), Path(), []) as nothing_asked:
        assert nothing_asked == WorkerOptions(None, None, None)
    with worker_options.open_workers(read("--workers", "3", "--device", "cpu"), Path(), []) as asked:
        assert asked == WorkerOptions(3, "cpu", None)
    with pytest.raises(UserError, match="--workers -1: expected a number of processes"):
        worker_options.check_options(read("--workers", "-1"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpus-per-worker", "0.5"], "--ray-address and --gpus-per-worker need --engine ray"),
        (["--engine", "ray", "--device", "cuda"], "--engine ray: use --gpus-per-worker (0 or more) instead of --device"),
        (["--engine", "ray", "--workers", "0"], "and at least 1 for --workers"),
    ],
)
def test_codes_refuses_contradicting_worker_options_before_it_reads_clips(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert codes.main([str(tmp_path / "none"), "--model", "none", *argv]) == 2
    assert message in capsys.readouterr().err
