"""The only training loop: take a step's micro-batches, update, tell, evaluate, save, stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from finetune import batches, checkpoint, config, optim
from finetune.batches import Place, Turn
from finetune.config import Config
from finetune.errors import UserError
from finetune.evaluation import evaluate
from finetune.events import Events
from finetune.loss_spikes import NotFiniteError, Recent, append_update, check_validation_loss
from finetune.step import Training, loader_of, train_step
from finetune.stop_requests import AgreedStop, StopRequests, agree_to_stop, save_obstacle


@dataclass(frozen=True)
class Progress:
    """All that changes, besides weights and moments."""

    step: int = 0
    place: Place = field(default_factory=Place)
    validation_loss: float | None = None
    """Of an evaluation at this very step: that of an older one would make other weights the best."""
    skipped: int = 0
    """Steps whose update was not applied, because it was not finite, or a spike."""
    recent: Recent = ()
    """Kept under `train.spike`."""


def fit(
    training: Training,
    progress: Progress,
    events: Events,
    saver: checkpoint.Saver,
    requests: StopRequests,
    after_step: Callable[[int], None] = lambda _: None,
) -> tuple[Progress, str]:
    """Train to the end or to a request to stop; returns where it stands and why. Collective: call on every rank.

    `after_step` is told each step that is done, once what was due then is saved or being saved.
    """
    todo = steps_left(training, progress)
    stop = None
    if evaluation_due(training, progress):  # a stop came before the last process had it
        progress, stop = look_up(training, progress, events, requests)
    if stop is not None:  # all of it is committed, and one step more would leave that evaluation behind
        requests.remove_stop_file(stop, training.world)
        return progress, stop.reason
    with closing(loader_of(training, training.rows)) as loader:
        for step, turns in loader.over(todo):
            progress = advance(training, progress, events, turns, step.after, saver.before_update)
            progress, stop = look_up(training, progress, events, requests)
            unsaved = save_when_due(training, progress, events, saver, stop)
            after_step(progress.step)
            if stop is not None:
                requests.remove_stop_file(stop, training.world)
                return progress, "; ".join(filter(None, (stop.reason, unsaved)))
    return progress, "finished"


def steps_left(training: Training, progress: Progress) -> Iterator[batches.Step]:
    """The steps from where the run stands to its end."""
    train = training.config.train
    todo = batches.steps(batches.Order.of(training.config), training.rows.lengths, progress.place, None if train.steps else train.epochs)
    return islice(todo, training.total - progress.step)


def look_up(training: Training, progress: Progress, events: Events, requests: StopRequests) -> tuple[Progress, AgreedStop | None]:
    """Between two steps: hear whether any rank is asked to stop, evaluate if it is time. Collective: call on every rank."""
    grace = training.config.checkpoint.grace_seconds
    stop = agree_to_stop(training.world, requests, grace)
    if stop is None and evaluation_due(training, progress):
        progress = evaluated(training, progress, events, requests)
        stop = agree_to_stop(training.world, requests, grace)
    return progress, stop


def save_when_due(training: Training, progress: Progress, events: Events, saver: checkpoint.Saver, stop: AgreedStop | None) -> str | None:
    """Save at a save point, at the end and before a stop; returns why a stop went without. Collective: call on every rank."""
    last, unsaved = stop is not None or progress.step == training.total, None
    if last or save_due(training.config, progress.step):
        attempt(training, events, progress.step, saver.finish)
        unsaved = None if stop is None else save_obstacle(training.world, stop, saver.seconds)
        if unsaved is None:
            attempt(training, events, progress.step, partial(save, training, progress, saver), last)
    attempt(training, events, progress.step, saver.finish if last else saver.poll, last)
    return unsaved


def save_due(config: Config, step: int) -> bool:
    """Whether `step` is a save point: also where answers are sampled, which come from a checkpoint of their very step."""
    return any(step % every == 0 for every in (config.checkpoint.every, config.sample.every) if every)


def advance(
    training: Training, progress: Progress, events: Events, turns: list[Turn], after: Place, before_update: Callable[[], None]
) -> Progress:
    """Train one step, or skip its update if that is not finite, or a spike, and the budget allows. Collective: call on every rank."""
    chosen = training.config
    reached = replace(progress, step=progress.step + 1, place=after, validation_loss=None)
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
    if reached.step % chosen.log.every == 0 or reached.step == training.total:
        events.step(reached.step, numbers)
    return reached


def evaluation_due(training: Training, progress: Progress) -> bool:
    """Whether these weights are to be evaluated and have not been. After a stop inside an evaluation the next process makes up for it."""
    if training.val is None or progress.step == 0 or progress.validation_loss is not None:
        return False
    return progress.step % training.config.eval.every == 0 or progress.step == training.total


def evaluated(training: Training, progress: Progress, events: Events, requests: StopRequests) -> Progress:
    """With the validation loss of this moment, or as it was if a stop came in between. Collective: call on every rank."""
    assert training.val is not None
    measured = evaluate(training, training.val, requests)
    if measured is None:
        return progress
    check_validation_loss(progress.step, measured["loss"])
    events.evaluation(progress.step, measured)
    return replace(progress, validation_loss=measured["loss"])


def save(training: Training, progress: Progress, saver: checkpoint.Saver) -> None:
    """Begin a checkpoint of this moment. Collective: call on every rank."""
    if not training.optimizer.state:  # every update so far was skipped
        optim.restore_state(training.optimizer, 0)
    tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    state = {
        **training.identity,
        "buffers": sorted(training.loaded.buffers),
        "place": asdict(progress.place),
        "optimizer_steps": progress.step - progress.skipped,
        "skipped": progress.skipped,
        "recent": progress.recent,
        "validation_loss": progress.validation_loss,
        "world": training.world.size,
        "strategy": training.strategy,
        "device": training.world.device.type,
        "validation": None if training.val is None else training.val.digest,
    }
    saver.begin(progress.step, tensors, state, config.dump(training.config))


def attempt(training: Training, events: Events, step: int, part: Callable[[], Path | None], last: bool = False) -> None:
    """One part of a save, and word of what it committed. If it fails, `checkpoint.on_failure` says whether the run ends, or the next save
    point tries again; after the `last` there is none. Collective: call on every rank."""
    try:
        folder = part()
    except UserError as error:
        if last or training.config.checkpoint.on_failure == "stop" or isinstance(error, NotFiniteError):
            raise
        events.say(f"warning: {error}; training goes on, and the next save point tries again")
        events.note("save failed", step, problem=str(error))
        return
    if folder is not None:
        events.note("committed", checkpoint.step_of(folder), folder=folder.name)
