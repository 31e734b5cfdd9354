"""The body of `finetune/train.py`: builds or resumes a run, trains it, and records why it ended.

Each context manager below owns one concern of the end of a run: the record in `exit.json`, the saver, the report of a failure.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

from accelerate.state import AcceleratorState, GradientState, PartialState
from pydantic import JsonValue

from overtone.finetune import command_lines
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.checkpoint import Saver
from overtone.finetune.checkpointing.remote_copies import Copies
from overtone.finetune.config import Config
from overtone.finetune.config_diff import flatten
from overtone.finetune.distributed import process_group as worlds
from overtone.finetune.distributed.process_group import World, idle_gpus, run_on_main
from overtone.finetune.errors import ElsewhereError, UserError
from overtone.finetune.modeling import compilation
from overtone.finetune.monitoring import collective_progress
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.monitoring.rank_failure_detection import Heartbeat, RunFailure
from overtone.finetune.monitoring.run_logger import Events, Listener, draw_curve, ignore_event
from overtone.finetune.monitoring.run_records import EXIT_RECORD, REFUSED, is_finished
from overtone.finetune.monitoring.stop_requests import SignalListener, StopRequests
from overtone.finetune.recipe import Recipe
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_diagnostic
from overtone.finetune.training import out_of_memory
from overtone.finetune.training.early_stopping_by_samples import SampleChoice
from overtone.finetune.training.generation_during_training import Sampler, bytes_on_gpu
from overtone.finetune.training.loop import Progress, fit
from overtone.finetune.training.setup import FolderClaim, build, report_start
from overtone.finetune.training.start_and_end_messages import describe_result, describe_start, describe_stop
from overtone.finetune.training.step import Training

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that end a process outside of the training loop, where no step can react to them."""
ACCELERATE_STATES = (PartialState, AcceleratorState, GradientState)
STOPPING_NAMES = frozenset(number.name for number in (signal.SIGINT, *ENDING_SIGNALS))


@dataclass
class Ending:
    """The reason why training ended, as `exit.json` records it."""

    step: int
    """Step at which the run started, until it ends in good order."""
    reason: str = "failed"
    failure: RunFailure = field(default_factory=lambda: RunFailure(""))
    """The first failure on any rank."""


@contextmanager
def process_group(trackers: tuple[str, ...], run_dir: Path) -> Iterator[World]:
    """The ranks that the launcher started. Collective: open and close it on every rank."""
    before, hook = [dict(state._shared_state) for state in ACCELERATE_STATES], sys.excepthook
    with collective_progress.recording(run_dir, os.environ):
        world = worlds.join(trackers, run_dir)
        with finally_unless_others_wait(world, partial(leave_group, before, hook)):
            yield world


def leave_group(
    before: Sequence[dict[str, object]], hook: Callable[[type[BaseException], BaseException, TracebackType | None], object]
) -> None:
    """`before`: what accelerate knew about this process. What it learnt since then would be the settings of whatever else uses it here.
    `hook`: `sys.excepthook`, which torch has wrapped to name the rank."""
    worlds.leave()
    sys.excepthook = hook
    for state, known in zip(ACCELERATE_STATES, before, strict=True):
        state._shared_state.clear()
        state._shared_state.update(known)


@contextmanager
def finally_unless_others_wait(world: World, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` at the end; not after an exception on one of several ranks, where other ranks may still use the connections to report
    the same failure, and this process ends."""
    try:
        yield
    except BaseException:
        if world.size == 1:
            action()
        raise
    action()


def train(world: World, config: Config, recipe: Recipe, requests: StopRequests | None = None, listener: Listener | None = None) -> str:
    """Build or resume the run, train it, and record why it ended; returns that reason. Collective: call on every rank.

    An engine such as Ray passes its own stop `requests`, and a `listener` to the run's events.
    """
    warn_of_idle_gpus(world)
    requests = requests or StopRequests(config.run.dir, config.run.deadline_minutes)
    heartbeat, claims = Heartbeat(world), list[FolderClaim]()
    requests.end = heartbeat.end_by_signal

    def on_claim(claim: FolderClaim) -> None:
        heartbeat.leave_traces_in(config.run.dir, partial(record_failed_start, config.run.dir, claim))
        claims.append(claim)

    with (
        finally_unless_others_wait(world, partial(release_lock, world, claims)),
        # Around the others: a launcher that has lost a rank ends the others by SIGTERM, while they are about to report why.
        SignalListener(ENDING_SIGNALS, heartbeat.end_by_signal),
        heartbeat,
        Copies(config.run.dir, config.checkpoint, world.is_main) as copies,
        ExitStack() as opened,
    ):
        run_on_main(world, copies.open)
        with out_of_memory.explain_out_of_memory(config, recipe, world):
            training, progress = build(config, recipe, world, on_claim)
        if training.rollouts is not None:
            opened.callback(training.rollouts.worker.close)
        config = training.config  # whose sizes are numbers
        heartbeat.on_failure = lambda failure: write_exit_record(config.run.dir, heartbeat.step, failure.reason, failure)
        notify = partial(notify_all, (listener or ignore_event, copies.handle_event, heartbeat.note_event))
        settings = tracker_settings(config.model_dump(mode="json"))
        events = Events(config.run.dir, world.accelerator, training.total, progress.step, settings, notify, recipe.unit)
        report_launch(training, progress, events, claims[0].killed)
        started = time.monotonic()
        copies.schedule_upload(progress.step)
        saver = Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous, events.say)
        ending = Ending(progress.step)
        with (
            record_ending(ending, world, config.run.dir, events),
            close_saver(saver),
            report_failure(ending, world, heartbeat),
            out_of_memory.explain_out_of_memory(config, recipe, world, training),
            compilation.explain_compiler_errors(),
        ):
            needed = partial(estimate_sampling_bytes, training)
            sampler = Sampler(config, training.total, events, world.is_main, world.device, needed, training.sampling, progress.step)
            with sampler, requests:
                choice = SampleChoice(world, config, sampler, events) if training.sampling.decides else None
                after_step = partial(advance_side_work, sampler, copies, events)
                progress, reason = fit(training, progress, events, saver, requests, after_step, choice)
                if is_finished(reason):
                    reason = finish_samples(training, sampler, choice, requests, reason)
            run_on_main(world, lambda: copies.finish(events))
            ending.step, ending.reason = progress.step, reason
    if world.is_main:
        report_end(training, ending, events, time.monotonic() - started)
    return reason


def report_launch(training: Training, progress: Progress, events: Events, killed: str | None) -> None:
    """Report how the run starts or resumes. `killed`: how the launch before ended, if it was killed. Collective: call on every rank."""
    if killed is not None:
        events.say(f"warning: {killed}")
        events.note("killed", progress.step, account=killed)
    report_start(training, progress, events)
    if training.world.is_main:
        events.say("\n".join(describe_start(training, progress)))


def release_lock(world: World, claims: Sequence[FolderClaim]) -> None:
    """Let this process, or another one, train in the folder again. `claims`: one, or none if the folder was not claimed."""
    for claim in claims if world.is_main else ():
        os.close(claim.lock)


def estimate_sampling_bytes(training: Training) -> int:
    """GPU memory that generating and measuring samples takes."""
    prepared = training.sampling.prepared
    own = bytes_on_gpu(training.loaded.base, training.recipe.base_folders, len(training.config.sample.prompts))
    return own + (0 if prepared is None else prepared.bytes)


def finish_samples(training: Training, sampler: Sampler, choice: SampleChoice | None, requests: StopRequests, reason: str) -> str:
    """After the last step: wait for the samples that are not finished, unless a stop is requested; returns why the run ended. Collective:
    call on every rank."""
    if choice is None:
        sampler.finish(requests)
        return reason
    stop = choice.wait(requests, 0)
    run_on_main(training.world, lambda: prune_measured(training))
    if stop is None:
        return reason
    requests.remove_stop_file(stop, training.world)
    return f"{stop.reason} before all samples were measured"


def prune_measured(training: Training) -> int:
    """Remove the checkpoints that were only kept for their measurement; returns their number. On rank 0, while no save is in progress."""
    folder = checkpoint.folder_of(training.config.run.dir)
    saved = checkpoint.list_checkpoints(folder)
    return len(checkpoint.prune(folder, training.config.checkpoint.keep, saved[0])) if saved else 0


def report_end(training: Training, ending: Ending, events: Events, seconds: float) -> None:
    """Draw the loss curve, and print the result or how to resume. `seconds`: since the first step of this launch."""
    config = training.config
    save_curve(config.run.dir, events)
    if is_finished(ending.reason):
        events.say("\n".join(describe_result(training, ending.reason, ending.step, seconds, events.log_path)))
    else:
        events.say("\n".join(describe_stop(config.run.dir, config.recipe, ending.reason, ending.step, training.total)))


def warn_of_idle_gpus(world: World) -> None:
    """Collective: call on every rank."""
    for idle in idle_gpus(world):
        if world.is_main:
            print_diagnostic(f"warning: {idle}")
            arguments = command_lines.find_own_arguments()
            if world.size == 1 and arguments is not None and not any(word.partition("=")[0] == "--launch" for word in arguments):
                command = command_lines.overtone_command("train", "--launch", "fsdp2", *arguments)
                print_diagnostic(f"  to use all of them: {command}")


def notify_all(listeners: tuple[Listener, ...], kind: str, step: int, facts: dict[str, JsonValue]) -> None:
    """Several listeners as one."""
    for listener in listeners:
        listener(kind, step, facts)


def advance_side_work(sampler: Sampler, copies: Copies, events: Events, step: int) -> None:
    """Between two steps: start and collect what runs beside training. Never waits."""
    sampler.after_step(step)
    copies.advance(events)


@contextmanager
def report_failure(ending: Ending, world: World, heartbeat: Heartbeat) -> Iterator[None]:
    """Report an exception to all ranks, and put into `ending` what failed first in the run.

    A broken collective is raised as the failure of the rank that broke it.
    """
    try:
        yield
    except NotFiniteError as error:  # raised on all ranks at the same step, so no rank waits for another
        ending.reason, ending.failure = error.reason, RunFailure(str(error))
        raise
    except BaseException as error:
        ending.failure = heartbeat.fail(error)  # before anything that may wait: other ranks are inside a collective
        ending.reason = ending.failure.reason
        if isinstance(error, RuntimeError) and ending.failure.rank not in (None, world.rank):
            # That rank may have been killed before it could report; then the main rank does.
            raise (ElsewhereError if ending.failure.reported or not world.is_main else UserError)(ending.failure.message) from error
        raise


@contextmanager
def close_saver(saver: Saver) -> Iterator[None]:
    """Close the saver at the end. A save in progress is committed before a `NotFiniteError` ends the run.

    Collective: open and close it on every rank.
    """
    try:
        yield
    except NotFiniteError:
        saver.finish()  # all ranks are here, and what is being written is from before the NaN
        raise
    finally:
        saver.close()


@contextmanager
def record_ending(ending: Ending, world: World, run_dir: Path, events: Events) -> Iterator[None]:
    """Log that the run stopped, close the log, and write exit.json on rank 0."""
    try:
        yield
    finally:
        reached = max(ending.step, events.reached)
        events.note("stopped", reached, reason=ending.reason)
        events.close()
        if world.is_main:
            write_exit_record(run_dir, reached, ending.reason, ending.failure)


def record_failed_start(run_dir: Path, claim: FolderClaim, failure: RunFailure) -> None:
    """Record why a launch ended before its training began. If it was refused or interrupted, the run is as it was before, and so is its
    record: a mistyped command must not turn a finished run into a failed one."""
    is_stopped = failure.signal in STOPPING_NAMES
    if claim.record is not None and (is_stopped or failure.refused):
        files.discard(run_dir / f"failure-rank-{failure.rank}.txt")
        files.write_if_absent(run_dir / EXIT_RECORD, claim.record.encode())
    elif claim.killed is not None and (is_stopped or failure.refused):
        write_exit_record(run_dir, 0, "failed", RunFailure(claim.killed))
    elif is_stopped:
        write_exit_record(run_dir, 0, f"stopped by {failure.signal} before the first step", failure)
    else:
        write_exit_record(run_dir, 0, REFUSED if failure.refused else failure.reason, failure)


def write_exit_record(run_dir: Path, step: int, reason: str, failure: RunFailure) -> None:
    """Write to exit.json why the run ended: the launcher turns every exit code into 1.

    If several ranks report a failure, the first record is kept. A run that ends in good order replaces any record, which is then from
    another launch. If the disk refuses the record, a warning is printed, and the run ends as it would have.
    """
    committed = checkpoint.list_checkpoints(checkpoint.folder_of(run_dir))
    record = {
        **{"reason": reason, "message": failure.message or None, "step": step or None},
        **{
            "last_commit": committed[0].name if committed else None,
            "rank": failure.rank,
            "signal": failure.signal,
            "host": platform.node(),
        },
    }
    place = run_dir / EXIT_RECORD
    try:
        (files.write_if_absent if failure.message else files.write_bytes)(place, files.json_bytes(record))
    except (OSError, UserError) as error:
        print_diagnostic(f"warning: {place} cannot be written ({error}); the run: {reason} at step {step}")


def save_curve(run_dir: Path, events: Events) -> None:
    """Plot the log to loss.png. A failure is a warning: the log may hold lines that people wrote, and the training is done."""
    try:
        draw_curve(events.log_path, run_dir / "loss.png")
    except Exception as error:
        events.say(f"warning: no loss.png ({type(error).__name__}: {error})")


def tracker_settings(config: Mapping[str, JsonValue]) -> dict[str, int | float | bool | str]:
    """A config as trackers take it: dotted keys with plain values; empty sections are left out."""
    found = ((key, value) for key, value in flatten(config).items() if value != {})
    return {key: value if isinstance(value, int | float | bool) else str(value) for key, value in found}
