"""The training loop: takes a step's micro-batches, updates, logs, evaluates, saves and stops; and resumes from what it saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from overtone.finetune import config
from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.late_evaluations import LateEvaluation, write_evaluation
from overtone.finetune.checkpointing.remote_copies import download_newest
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.config import Checkpoint, Sample, require_number
from overtone.finetune.data import batching
from overtone.finetune.data.batching import Place, RankBatch
from overtone.finetune.distributed.process_group import World, run_on_all, run_on_main
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.modeling import optimizers
from overtone.finetune.monitoring.loss_spikes import NotFiniteError, Recent, append_update, check_validation_loss
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import FINISHED, FINISHED_EARLY
from overtone.finetune.monitoring.stop_requests import AgreedStop, StopRequests, agree_to_stop, find_save_obstacle
from overtone.finetune.recipe import recipe_arguments
from overtone.finetune.terminal import print_diagnostic
from overtone.finetune.training.early_stopping_by_samples import MOST_PENDING, SampleChoice
from overtone.finetune.training.evaluation import evaluate
from overtone.finetune.training.step import Training, make_loader, train_step


@dataclass(frozen=True)
class Progress:
    """The state of training besides weights and optimizer state."""

    step: int = 0
    place: Place = field(default_factory=Place)
    validation_loss: float | None = None
    """Loss of an evaluation at this very step: a loss of other weights must not decide which checkpoint is the best."""
    skipped: int = 0
    """Updates that were not applied, because loss or gradient was not finite, or a spike."""
    recent: Recent = ()
    """Loss and gradient norm of the last updates, if `train.spike` is set."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """All metrics of an evaluation at this very step."""
    best_value: float | None = None
    """Best value of `checkpoint.best_by` so far."""
    stale_evaluations: int = 0
    """Number of evaluations since then."""


def fit(
    training: Training,
    progress: Progress,
    events: Events,
    saver: checkpoint.Saver,
    requests: StopRequests,
    after_step: Callable[[int], None] = lambda _: None,
    samples: SampleChoice | None = None,
) -> tuple[Progress, str]:
    """Train to the end or until a stop is requested; returns the progress and why it ended. Collective: call on every rank.

    `after_step` is called with the number of each completed step, when a save that was due is done or in progress. `samples`: None unless
    `checkpoint.best_by` is one of their metrics.
    """
    todo = steps_left(training, progress)
    stop = None
    if evaluation_due(training, progress):  # of the base, or one that a stop interrupted in the previous launch
        progress, stop = evaluate_or_stop(training, progress, events, requests)
        if progress.step and progress.validation_loss is not None:
            run_on_main(training.world, partial(record_late_evaluation, training, progress))
    early = explain_early_end(training, progress, samples)
    if stop is None and early is not None:  # by this evaluation, or in an earlier launch
        return progress, early
    if stop is not None:  # all steps are committed; after one more, that evaluation could not be made up for
        requests.remove_stop_file(stop, training.world)
        return progress, stop.reason
    with closing(make_loader(training, training.rows)) as loader:
        for step, turns in loader.iterate(todo):
            if samples is not None and is_sample_due(training, progress.step):
                samples.wait(requests, MOST_PENDING)  # a stop that ends it is agreed on after this step
            progress = take_step(training, progress, events, turns, step.after, saver.before_update)
            progress, stop = evaluate_or_stop(training, progress, events, requests)
            early = explain_early_end(training, progress, samples)
            unsaved = save_when_due(training, progress, events, saver, stop, early is not None)
            after_step(progress.step)
            if stop is not None:
                requests.remove_stop_file(stop, training.world)
                return progress, "; ".join(filter(None, (stop.reason, unsaved)))
            if early is not None:
                return progress, early
    return progress, FINISHED


def explain_early_end(training: Training, progress: Progress, samples: SampleChoice | None = None) -> str | None:
    """Return the reason for which `train.patience` ends the run here; None if it does not, or if this is the last step anyway. Collective:
    call on every rank."""
    patience = training.config.train.patience
    if patience is None or progress.step == training.total:
        return None
    if samples is not None:
        return samples.explain_early_end(patience)
    if progress.stale_evaluations < patience:
        return None
    best_by = BestBy.parse(training.config.checkpoint.best_by)
    evaluations = format_count(progress.stale_evaluations, "evaluation")
    return f"{FINISHED_EARLY}: {evaluations} without a better {best_by.metric} than {progress.best_value:.6g} (train.patience: {patience})"


def steps_left(training: Training, progress: Progress) -> Iterator[batching.Step]:
    """Return the steps that remain of the run."""
    train = training.config.train
    todo = batching.steps(training.order, training.rows.lengths, progress.place, None if train.steps else train.epochs)
    return islice(todo, training.total - progress.step)


def evaluate_or_stop(training: Training, progress: Progress, events: Events, requests: StopRequests) -> tuple[Progress, AgreedStop | None]:
    """Between two steps: agree on a stop that any rank was sent, and evaluate if that is due. Collective: call on every rank."""
    grace = training.config.checkpoint.grace_seconds
    stop = agree_to_stop(training.world, requests, grace)
    if stop is None and evaluation_due(training, progress):
        progress = run_evaluation(training, progress, events, requests)
        stop = agree_to_stop(training.world, requests, grace)
    return progress, stop


def save_when_due(
    training: Training, progress: Progress, events: Events, saver: checkpoint.Saver, stop: AgreedStop | None, early: bool
) -> str | None:
    """Save at a save point, at the end (of all steps, or `early`) and before a stop; returns why there was no save before a stop.
    Collective: call on every rank."""
    last, unsaved = stop is not None or early or progress.step == training.total, None
    if last or save_due(training.config.checkpoint, training.config.sample, progress.step):
        try_save(training, events, progress.step, saver.finish)
        unsaved = None if stop is None else find_save_obstacle(training.world, stop, saver.seconds)
        if unsaved is None:
            try_save(training, events, progress.step, partial(save, training, progress, saver), last)
    try_save(training, events, progress.step, saver.finish if last else saver.poll, last)
    return unsaved


def save_due(checkpoints: Checkpoint, sample: Sample, step: int) -> bool:
    """Return whether `step` is a save point. Each step of `sample.every` is one too: answers are sampled from a checkpoint of that step."""
    return any(step % every == 0 for every in (require_number(checkpoints.every), sample.every) if every)


def is_sample_due(training: Training, step: int) -> bool:
    """Return whether the prompts of `sample` are answered with the checkpoint of this step."""
    every = training.config.sample.every
    return every is not None and step > 0 and (step % every == 0 or step == training.total)


def take_step(
    training: Training, progress: Progress, events: Events, turns: list[RankBatch], after: Place, before_update: Callable[[], None]
) -> Progress:
    """Train one step, or skip its update if that is not finite, or a spike, and the budget allows. Collective: call on every rank."""
    chosen = training.config
    reached = replace(progress, step=progress.step + 1, place=after, validation_loss=None, evaluation={})
    try:
        numbers = train_step(training, turns, progress.step, progress.recent, before_update)
    except NotFiniteError as error:
        if progress.skipped >= chosen.train.skip_nonfinite:
            raise
        reached = replace(reached, skipped=progress.skipped + 1)
        events.say(f"warning: skipped update {reached.skipped} of train.skip_nonfinite: {chosen.train.skip_nonfinite}: {error}")
        events.note("skipped", reached.step, problem=str(error), skipped=reached.skipped)
        return reached
    if chosen.train.spike is not None:
        reached = replace(reached, recent=append_update(progress.recent, numbers["loss"], numbers["grad_norm"]))
    logged = reached.step % chosen.log.every == 0 or reached.step == training.total
    if logged:
        events.step(reached.step, numbers, training.metrics)
    if (times := training.rank_times) is not None:
        if logged:
            computed, late = [round(each, 4) for each in times.computed], [round(each, 4) for each in times.late]
            events.note("ranks", reached.step, computed_seconds=[*computed], late_seconds=[*late])
        for line in times.report_stragglers():
            events.say(f"warning: step {reached.step}: {line}")
            events.note("straggler", reached.step, account=line)
    return reached


def evaluation_due(training: Training, progress: Progress) -> bool:
    """Return whether these weights are still to be evaluated. An evaluation that a stop interrupted is due again in the next launch."""
    if training.val is None or progress.validation_loss is not None:
        return False
    if progress.step == 0:
        return training.config.eval.at_start
    return progress.step % require_number(training.config.eval.every) == 0 or progress.step == training.total


def run_evaluation(training: Training, progress: Progress, events: Events, requests: StopRequests) -> Progress:
    """Evaluate and log; returns progress with the validation loss, or unchanged if a stop interrupted. Collective: call on every rank."""
    assert training.val is not None
    measured = evaluate(training, training.val, requests)
    if measured is None:
        return progress
    check_validation_loss(progress.step, measured["loss"])
    best_by = BestBy.parse(training.config.checkpoint.best_by)
    if best_by.metric not in measured and not best_by.is_sampled:
        raise UserError(f"checkpoint.best_by: {best_by.metric} is not a metric of the evaluation; these are {', '.join(sorted(measured))}")
    of_files = (f"{source}/loss" for source in training.validation_sources)
    shown = dict.fromkeys(name for name in (*training.metrics, *of_files, best_by.metric) if name != "loss")
    events.evaluation(progress.step, measured, shown)
    finite = {name: value for name, value in measured.items() if math.isfinite(value)}
    if not best_by.is_sampled:
        progress = note_metric(progress, finite.get(best_by.metric), best_by)
    return replace(progress, validation_loss=measured["loss"], evaluation=finite)


def record_late_evaluation(training: Training, progress: Progress) -> None:
    """Record an evaluation of the checkpoint that this launch resumed from, which was saved without one. On rank 0."""
    assert training.val is not None and progress.validation_loss is not None
    evaluation = LateEvaluation(
        validation_loss=progress.validation_loss,
        evaluation=progress.evaluation,
        best_by=training.config.checkpoint.best_by,
        best_value=progress.best_value,
        stale_evaluations=progress.stale_evaluations,
        validation=training.val.digest,
    )
    write_evaluation(checkpoint.folder_of(training.config.run.dir) / f"step-{progress.step:08d}", evaluation)


def note_metric(progress: Progress, value: float | None, best_by: BestBy) -> Progress:
    """Progress after an evaluation with this value of the metric; None, for one that is not finite, is no improvement."""
    best = progress.best_value
    if value is not None and (best is None or best_by.rank(value) > best_by.rank(best)):
        return replace(progress, best_value=value, stale_evaluations=0)
    return replace(progress, stale_evaluations=progress.stale_evaluations + 1)


def save(training: Training, progress: Progress, saver: checkpoint.Saver) -> None:
    """Start saving a checkpoint. Collective: call on every rank."""
    if not training.optimizer.state:  # every update so far was skipped
        optimizers.restore_state(training.optimizer, 0)
    tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    state = {
        **training.identity,
        "buffers": sorted(training.loaded.buffers),
        "place": asdict(progress.place),
        "optimizer_steps": progress.step - progress.skipped,
        "skipped": progress.skipped,
        "recent": progress.recent,
        "validation_loss": progress.validation_loss,
        "evaluation": progress.evaluation,
        "best_by": training.config.checkpoint.best_by,
        "best_value": progress.best_value,
        "stale_evaluations": progress.stale_evaluations,
        "world": training.world.size,
        "strategy": training.strategy,
        "device": training.world.device.type,
        "validation": None if training.val is None else training.val.digest,
        "sampling": training.sampling.digest,
        "sample_due": training.sampling.decides and is_sample_due(training, progress.step),
    }
    saver.begin(progress.step, tensors, state, config.dump(training.config))


def find_newest(run_dir: Path, copy_to: RemoteAddress | None, world: World) -> Path | None:
    """Return the checkpoint to resume from; None if there is none. Warns of damaged ones. Collective: call on every rank."""
    newest, passed_over = run_on_main(world, lambda: newest_checkpoint(run_dir, copy_to))
    for problem in passed_over if world.is_main else []:
        print_diagnostic(f"warning: skipped {problem}")
    return None if newest is None else Path(newest)


def resume(training: Training, newest: Path | None) -> Progress:
    """Restore this checkpoint. Collective: call on every rank."""
    return Progress() if newest is None else run_on_all(training.world, lambda: resume_from(training, newest))


def newest_checkpoint(run_dir: Path, copy_to: RemoteAddress | None) -> tuple[str | None, list[str]]:
    """Return the newest good one in the run's folder, else in its remote copies: its path and warnings, as JSON for the other ranks."""
    path, passed_over = checkpoint.find_newest_valid(run_dir)
    if path is None and copy_to is not None:
        path, more = download_newest(copy_to, run_dir)
        passed_over = [*passed_over, *more]
    return None if path is None else str(path), passed_over


def resume_from(training: Training, path: Path) -> Progress:
    """Load a checkpoint into model and optimizer; returns its progress. Raises `UserError` naming each difference to another run."""
    state = checkpoint.read_state(path)
    saved: Mapping[str, Any] = state
    now = training.identity
    if state["optimizer"] != now["optimizer"]:
        raise UserError(
            f"{path} was saved with train.optimizer: {state['optimizer']}, whose state {now['optimizer']} cannot use; resume with "
            f"--train.optimizer {state['optimizer']}, or choose another --run.dir (an export of this run can be its model.source)"
        )
    if differences := [checkpoint.describe_difference(key, saved[key], now[key]) for key in checkpoint.find_differences(state, now)]:
        raise UserError(
            f"{path} belongs to a run with other data, base or order, so this run cannot resume from it:\n  "
            + "\n  ".join(differences)
            + "\nUse the settings and files that it was made with, or choose another --run.dir"
        )
    if training.total < state["step"]:
        raise UserError(describe_too_few_steps(training, path, state["step"]))
    checkpoint.restore(path, training.model, training.optimizer, training.loaded.buffers)
    recent = tuple((loss, norm) for loss, norm in state["recent"])
    place = Place(epoch=state["place"]["epoch"], window=state["place"]["window"], micro=state["place"]["micro"])
    now_by = BestBy.parse(training.config.checkpoint.best_by)
    best, stale = state["best_value"], state["stale_evaluations"]
    if now_by != BestBy.parse(state["best_by"]):  # another metric starts anew
        best, stale = state["evaluation"].get(now_by.metric), 0
    if training.val is not None and state["validation"] not in (None, training.val.digest):  # values on other rows are not comparable
        best, stale = None, 0
    return Progress(
        step=state["step"],
        place=place,
        validation_loss=state["validation_loss"],
        skipped=state["skipped"],
        recent=recent,
        evaluation=state["evaluation"],
        best_value=best,
        stale_evaluations=stale,
    )


def describe_too_few_steps(training: Training, path: Path, reached: int) -> str:
    """Return the error of a run that would end before the checkpoint that it resumes from."""
    train = training.config.train
    wanted = f"train.steps: {train.steps}" if train.steps else f"train.epochs: {train.epochs}, which are {training.total:,} steps"
    target = ["--step", "N", "--to", "FOLDER", *recipe_arguments(training.config.recipe)]
    earlier = overtone_command("export", training.config.run.dir, *target)
    return (
        f"{wanted}, but {path} is of step {reached:,} already; give --train.steps {reached} or more, export an earlier step "
        f"({earlier}), or choose another --run.dir"
    )


def try_save(training: Training, events: Events, step: int, part: Callable[[], Path | None], last: bool = False) -> None:
    """Run one `part` of a save, and log the checkpoint that it committed. If it fails, the run ends, or, with `checkpoint.on_failure:
    continue`, the next save point tries again; after the `last` there is none. Collective: call on every rank."""
    try:
        folder = part()
    except UserError as error:
        if last or training.config.checkpoint.on_failure == "stop" or isinstance(error, NotFiniteError):
            raise
        events.say(f"warning: {error}; training continues, and the next save point tries again")
        events.note("save failed", step, problem=str(error))
        return
    if folder is not None:
        events.note("committed", checkpoint.step_of(folder), folder=folder.name)
