"""accelerate launch finetune/train.py --recipe NAME [--config FILE …] [--section.key value …]

Trains a recipe on whatever the launcher started: one process or many, CPU or GPU. The run's folder holds its checkpoints, log and curve;
the same command again goes on from the newest good checkpoint. `--recipe NAME --help` lists every key.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import importlib.util
import os
import platform
import shlex
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from finetune import remote, sampling
from finetune.config import Config, help_text, resolve
from finetune.errors import ElsewhereError, UserError, exit_code
from finetune.layers import Arguments, parse_arguments
from finetune.recipe import Recipe, built_in_recipes, find_recipe, load_recipe

if TYPE_CHECKING:
    from finetune.checkpoint import Saver
    from finetune.copies import Copies
    from finetune.events import Events, Listener
    from finetune.heartbeat import Heartbeat, Loss
    from finetune.loop import Progress
    from finetune.step import Training
    from finetune.stop_requests import StopRequests
    from finetune.world import World

ENDING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that end a process, where no step can heed them."""


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    """From the command line to the exit code. Raises `UserError` for what a person can mend."""
    arguments = parse_arguments(argv)
    if arguments.help:
        print_help(__doc__, arguments)
        return 0
    try:
        config, recipe = settle(arguments)
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        raise ElsewhereError(str(error)) from error  # every process of a machine finds the same; one says it
    return train(config, recipe)


def print_help(about: str | None, arguments: Arguments) -> None:
    """What a verb does, `about`, and every key, those of the recipe among them if one is named."""
    options = load_recipe(find_recipe(arguments.recipe)).Options if arguments.recipe else None
    print(f"{about}\n{help_text(options)}")


def settle(arguments: Arguments) -> tuple[Config, Recipe]:
    """The recipe and its resolved, checked config; imports no torch."""
    config, recipe = resolved(arguments)
    check_inputs(config)
    sampling.check(config, recipe)
    return config, recipe


def resolved(arguments: Arguments) -> tuple[Config, Recipe]:
    """As `settle`, but what the config names may be missing."""
    if arguments.recipe is None:
        raise UserError("which recipe? give --recipe NAME, for example --recipe voice_clone")
    folder = find_recipe(arguments.recipe)
    recipe = load_recipe(folder)
    return resolve(arguments.recipe, recipe.Options, [folder / "config.yaml", *arguments.files], arguments.overrides), recipe


def check_inputs(config: Config) -> None:
    """What can be known before torch is imported or a device touched."""
    if config.data.train is None:
        raise UserError(
            "no training data: give --data.train FOLDER/train.jsonl. To make some from recordings:\n"
            "  python -m data_prep voice my_recordings/ --out data/me --whisper small --speaker me\n"
            "  python -m data_prep codes data/me --model Qwen/Qwen3-TTS-12Hz-0.6B-Base\n"
            "from conversations:\n"
            "  python -m data_prep text chats.jsonl --out data/chats\n"
            "or see the whole chain on a small example: make demo"
        )
    for tracker in config.log.trackers:
        found = importlib.util.find_spec(tracker)
        if found is None or found.origin is None:  # without an origin: a mere folder, as wandb leaves one where it ran
            raise UserError(f"log.trackers: {tracker} is not installed; `pip install {tracker}`, or take it out of the list")
    for key, path in (("data.train", config.data.train), ("data.val", config.data.val)):
        if isinstance(path, str):
            remote.look(path)
        elif path is not None and not path.is_file():
            raise UserError(
                f"{key}: {path} does not exist (looked from {Path.cwd()}); `python -m data_prep voice RECORDINGS --out FOLDER` "
                "makes it, or `python -m data_prep text CHATS --out FOLDER`"
            )


def train(config: Config, recipe: Recipe, requests: StopRequests | None = None, listener: Listener | None = None) -> int:
    """Join the world that the launcher started, train, part. `requests` and `listener`: of an engine that asks and is told besides.

    Collective: call on every rank.
    """
    from finetune import cuda_allocator

    account = cuda_allocator.use_expandable_segments(os.environ)
    if account is not None and os.environ.get("RANK", "0") == "0":
        print(account, flush=True)
    from finetune import world as worlds

    train_in(worlds.join(config.log.trackers, config.run.dir), config, recipe, requests, listener)
    worlds.leave()
    return 0


def train_in(world: World, config: Config, recipe: Recipe, requests: StopRequests | None = None, listener: Listener | None = None) -> str:
    """Build, resume, fit, and leave word why it ended; returns that reason. Collective: call on every rank."""
    from finetune import out_of_memory
    from finetune.assembly import build, introduce
    from finetune.copies import Copies
    from finetune.events import Events, draw_curve, nobody
    from finetune.heartbeat import Heartbeat
    from finetune.stop_requests import SignalListener, StopRequests
    from finetune.world import idle_gpus, once

    for idle in idle_gpus(world):
        if world.is_main:
            print(f"warning: {idle}", file=sys.stderr, flush=True)
    requests = requests or StopRequests(config.run.dir, config.run.deadline_minutes)
    heartbeat, accounts = Heartbeat(world), list[str]()

    def claimed(account: str | None) -> None:
        heartbeat.leave_traces_in(config.run.dir, partial(leave_last_word, config.run.dir, heartbeat))
        accounts.extend([account] if account else [])

    requests.end = heartbeat.end_by_signal
    # Outside of all else: a launcher that has lost a rank ends the others by SIGTERM, while they are about to say why.
    with SignalListener(ENDING, heartbeat.end_by_signal), heartbeat, Copies(config, world.is_main) as copies:
        once(world, copies.open)
        with out_of_memory.explained(config, recipe, world):
            training, progress = build(config, recipe, world, claimed)
        hear = partial(both, partial(both, listener or nobody, copies.hear), heartbeat.note_event)
        events = Events(config.run.dir, world.accelerator, training.total, progress.step, flat(config), hear)
        for account in accounts:
            events.say(f"warning: {account}")
            events.note("killed", progress.step, account=account)
        introduce(training, progress, events)
        copies.catch_up(progress.step)
        progress, reason = carry_through(training, progress, events, requests, heartbeat, copies)
    if world.is_main:
        try:
            draw_curve(events.log_path, config.run.dir / "loss.png")
        except Exception as error:  # a picture, and nothing that was trained; the log may hold lines that people wrote
            events.say(f"warning: no loss.png ({type(error).__name__}: {error})")
    events.say(f"{reason} at step {progress.step}; next: {export_command(config)}")
    return reason


def export_command(config: Config) -> str:
    """What makes a model of the run. A recipe that does not come with the package is named again: no file of the run may choose it."""
    outside = [] if config.recipe in built_in_recipes() else ["--recipe", config.recipe]
    return shlex.join(["python", "-m", "finetune", "export", str(config.run.dir), "--to", f"exports/{config.run.dir.name}", *outside])


def carry_through(
    training: Training, progress: Progress, events: Events, requests: StopRequests, heartbeat: Heartbeat, copies: Copies
) -> tuple[Progress, str]:
    """Fit, and however that ends: close everything, and leave word. Collective: call on every rank."""
    from finetune import compilation, out_of_memory
    from finetune.checkpoint import Saver
    from finetune.heartbeat import Loss
    from finetune.loss_spikes import NotFiniteError

    config, world = training.config, training.world
    saver = Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous, events.say)
    reason, loss = "failed", Loss("")
    try:
        with out_of_memory.explained(config, training.recipe, world, training), compilation.explained():
            progress, reason = fit_and_show(training, progress, events, saver, requests, copies)
    except NotFiniteError as error:
        reason, loss = error.reason, Loss(str(error))
        saver.finish()  # all ranks are here, and what is being written is from before the bad number
        raise
    except BaseException as error:
        loss = heartbeat.fail(error)  # before anything that may wait: other ranks stand in a collective
        reason = loss.reason
        if isinstance(error, RuntimeError) and loss.rank not in (None, world.rank):
            # The collective broke because that rank ended; somebody has to say so if that rank could not.
            raise (ElsewhereError if loss.reported or not world.is_main else UserError)(loss.message) from error
        raise
    finally:
        saver.close()
        reached = max(progress.step, events.reached)  # after a failure `progress` is still where the run started
        events.note("stopped", reached, reason=reason)
        events.close()
        if world.is_main:
            leave_word(config.run.dir, reached, reason, loss)
    return progress, reason


def fit_and_show(
    training: Training, progress: Progress, events: Events, saver: Saver, requests: StopRequests, copies: Copies
) -> tuple[Progress, str]:
    """Fit, while samples are made and checkpoints copied beside it; both are through when this returns. Collective: call on every rank."""
    from finetune.loop import fit
    from finetune.world import once

    config, world = training.config, training.world
    needed = partial(sampling.bytes_on_gpu, training.loaded.base, training.recipe.base_folders, len(config.sample.prompts))
    with sampling.Sampler(config, training.total, events, world.is_main, world.device, needed) as sampler, requests:

        def after_step(step: int) -> None:
            sampler.after_step(step)
            copies.advance(events)

        progress, ended = fit(training, progress, events, saver, requests, after_step)
        if ended == "finished":
            sampler.finish(requests)
    once(world, lambda: copies.finish(events))
    return progress, ended


def both(first: Listener, second: Listener, kind: str, step: int, facts: dict[str, Any]) -> None:
    """Two listeners as one."""
    first(kind, step, facts)
    second(kind, step, facts)


def leave_word(run_dir: Path, step: int, reason: str, loss: Loss) -> None:
    """Why the run ended, for whoever finds it: the launcher turns every exit code into 1. Of several ranks that report a failure the first
    one is kept; an end in good order replaces whatever is there, which then is not of this launch. A disk that refuses it is reported,
    and changes nothing about how the run ended."""
    from finetune import checkpoint, files
    from finetune.assembly import WORD

    committed = checkpoint.steps_in(checkpoint.folder_of(run_dir))
    word = {
        **{"reason": reason, "message": loss.message or None, "step": step or None},
        **{"last_commit": committed[0].name if committed else None, "rank": loss.rank, "signal": loss.signal, "host": platform.node()},
    }
    try:
        (files.write_first if loss.message else files.write_bytes)(run_dir / WORD, files.json_bytes(word))
    except (OSError, UserError) as error:
        print(f"warning: {run_dir / WORD} cannot be written ({error}); the run: {reason} at step {step}", file=sys.stderr, flush=True)


def leave_last_word(run_dir: Path, heartbeat: Heartbeat, loss: Loss) -> None:
    """For any rank, of a run that could not end in good order."""
    leave_word(run_dir, heartbeat.step, loss.reason, loss)


def flat(config: Config) -> dict[str, Any]:
    """Dotted keys with plain values, as trackers want them."""

    def walk(value: Any, prefix: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {key: leaf for name, child in value.items() for key, leaf in walk(child, f"{prefix}.{name}" if prefix else name).items()}
        return {prefix: value if isinstance(value, int | float | bool) else str(value)}

    return walk(config.model_dump(mode="json"), "")


def end(code: int) -> NoReturn:
    """End this process without the interpreter's own end: there a rank that had done everything was aborted now and then ("terminate called
    without an active exception", as C++ says when a running thread is destroyed), and the launcher took the others with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
