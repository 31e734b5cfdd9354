"""Training from Python: `train` and what it returns."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from overtone.finetune.errors import UserError


@dataclass(frozen=True)
class TrainingRun:
    """A training run, as its folder describes it."""

    folder: Path
    """With checkpoints, `log.jsonl` and the loss curve `loss.png`."""
    recipe: str
    """Empty if nothing was saved."""
    state: str
    """`finished`, `stopped`, `failed`, `refused`, `running` or `no record`."""
    reason: str
    """The reason why it ended, if not after its last step."""
    step: int
    """The last optimizer step."""
    total: int | None
    """Optimizer steps of the whole run; None if it never started."""
    losses: dict[int, float] = field(repr=False)
    """Training loss by optimizer step: `plt.plot(run.losses.keys(), run.losses.values())`."""
    evaluations: dict[int, dict[str, float]] = field(repr=False)
    """Metrics of each evaluation on `data.val` by optimizer step: `run.evaluations[100]["loss"]`."""
    checkpoints: dict[int, Path] = field(repr=False)
    """Folders of the saved checkpoints by optimizer step."""
    best: int | None
    """Step of the saved checkpoint with the best `checkpoint.best_by`, by default the lowest validation loss; None without evaluations."""


def train(
    recipe: str, settings: Mapping[str, object], *, config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ()
) -> TrainingRun:
    """Train a model in this process, on one GPU or on the CPU, and return the run when it has ended.

    If the run's folder contains checkpoints, the run resumes from the newest one. Progress is printed. Ctrl-C, or the interrupt of a
    notebook, saves a checkpoint after the current step and then raises `KeyboardInterrupt`; a second one interrupts at once. Other signals
    that stop a run (SIGTERM, SIGUSR1) also save first, and then have their usual effect. A run that a file STOP in its folder or
    `run.deadline_minutes` has stopped is returned with the state `stopped`.

    For several GPUs run the command `overtone train --launch fsdp2 --recipe …` with the same settings (`overtone.plan` prints it), or this
    program by `accelerate launch`.

    Args:
        recipe: a recipe of the package (`voice_clone`, `csm`, `codec_lm`, `llm_sft`, `image_classification`, `whisper`), or the path of
            a folder with a `recipe.py`.
        settings: keys of the config with their values: `{"data.train": dataset.train, "run.dir": "runs/me", "train.lr": 5e-6,
            "model.lora": {"rank": 16}}`. `overtone train --recipe NAME --help` lists all keys.
        config: one YAML file or several, with lower precedence than the settings.

    Returns:
        The run: losses, evaluations, checkpoints, and the best one.

    Raises:
        UserError: for a wrong key or value, missing data, too little memory, or anything else that the message says how to correct.
        KeyboardInterrupt: after an interrupt.
    """
    from overtone.finetune.config_sources import Arguments
    from overtone.finetune.monitoring.stop_requests import StopRequests
    from overtone.finetune.train import prepare_training

    with free_memory():
        resolved, loaded = prepare_training(Arguments(recipe, list_files(config), settings=settings), only_trains=False)
        from overtone.finetune.training import run

        requests = StopRequests(resolved.run.dir, resolved.run.deadline_minutes, keeps_process=True)
        with run.process_group(resolved.log.trackers, resolved.run.dir) as world:
            run.train(world, resolved, loaded, requests)
    if requests.received is not None:
        signal.raise_signal(signal.Signals[requests.received])  # the run has saved; now it has the effect that it has in this program
    return open_run(resolved.run.dir)


def open_run(folder: str | os.PathLike[str]) -> TrainingRun:
    """Read a run from its folder, as `train` returns it: after a restart of the notebook, or while another process trains.

    Args:
        folder: the `run.dir` of the run.

    Returns:
        The run as it is now.

    Raises:
        UserError: if the folder is not that of a run.
    """
    from overtone.finetune.argument_parsing import check_run_exists
    from overtone.finetune.checkpointing import checkpoint
    from overtone.finetune.checkpointing.retention import BestBy, choose_best_step
    from overtone.finetune.monitoring.run_records import LOG, RunHistory, read_history
    from overtone.finetune.monitoring.run_summary import is_run, summarize_run

    place = Path(folder)
    check_run_exists(place)
    if not is_run(place):
        raise UserError(f"{place} is not the folder of a run: it contains neither {LOG} nor checkpoints/; give the run.dir of a training")
    summary, saved = summarize_run(place), checkpoint.folder_of(place)
    try:
        history = read_history(place / LOG)
    except OSError:
        history = RunHistory({}, {})
    best_by = BestBy(summary.best_metric, summary.best_highest)
    return TrainingRun(
        folder=place,
        recipe=summary.recipe,
        state=summary.state,
        reason=summary.reason,
        step=summary.step,
        total=summary.total,
        losses=history.losses,
        evaluations=history.evaluations,
        checkpoints={checkpoint.step_of(path): path for path in sorted(checkpoint.list_checkpoints(saved))},
        best=choose_best_step(checkpoint.read_metric(saved, best_by), best_by),
    )


def list_files(config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The config files that a program gives: one or several."""
    return [Path(path) for path in ((config,) if isinstance(config, str | os.PathLike) else config)]


def locate_run(run: TrainingRun | str | os.PathLike[str]) -> Path:
    """The folder of a run, or the given folder."""
    return run.folder if isinstance(run, TrainingRun) else Path(run)


@contextmanager
def free_memory() -> Iterator[None]:
    """At the end, return the memory of the run to this process, whatever it does next. An exception keeps the variables of all functions
    that it left, and a notebook keeps the exception; those of an error that is no bug are cleared."""
    try:
        yield
    except (UserError, KeyboardInterrupt) as error:
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        raise
    finally:
        gc.collect()
        if "torch" in sys.modules:
            import torch

            torch.cuda.empty_cache()
            if "torch._dynamo" in sys.modules:  # compiled blocks count towards a limit per class, beyond which no more are compiled
                torch.compiler.reset()
