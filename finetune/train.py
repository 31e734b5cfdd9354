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
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from finetune import remote, sampling
from finetune.config import Config, help_text, resolve
from finetune.errors import ElsewhereError, UserError, exit_code
from finetune.layers import Arguments, parse_arguments
from finetune.recipe import Recipe, find_recipe, load_recipe

if TYPE_CHECKING:
    from finetune.checkpoint import Saver
    from finetune.copies import Copies
    from finetune.events import Events, Listener
    from finetune.guards import StopRequests
    from finetune.heartbeat import Heartbeat
    from finetune.loop import Progress
    from finetune.step import Training
    from finetune.world import World


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
    from finetune import world as worlds

    train_in(worlds.join(config.log.trackers, config.run.dir), config, recipe, requests, listener)
    worlds.leave()
    return 0


def train_in(world: World, config: Config, recipe: Recipe, requests: StopRequests | None = None, listener: Listener | None = None) -> str:
    """Build, resume, fit, and leave word why it ended; returns that reason. Collective: call on every rank."""
    from finetune.assembly import build, introduce
    from finetune.copies import Copies
    from finetune.events import Events, draw_curve, nobody
    from finetune.guards import StopRequests
    from finetune.heartbeat import Heartbeat
    from finetune.world import once

    requests = requests or StopRequests(config.run.dir, config.run.deadline_minutes)
    with Heartbeat(world) as heartbeat, Copies(config, world.is_main) as copies:
        once(world, copies.open)
        training, progress = build(config, recipe, world)
        heartbeat.leave_traces_in(config.run.dir, partial(leave_last_word, config.run.dir))
        hear = partial(both, listener or nobody, copies.hear)
        events = Events(config.run.dir, world.accelerator, training.total, progress.step, flat(config), hear)
        introduce(training, progress, events)
        copies.catch_up(progress.step)
        progress, reason = carry_through(training, progress, events, requests, heartbeat, copies)
    if world.is_main:
        draw_curve(events.log_path, config.run.dir / "loss.png")
    events.say(f"{reason} at step {progress.step}; next: python -m finetune export {config.run.dir} --to exports/{config.run.dir.name}")
    return reason


def carry_through(
    training: Training, progress: Progress, events: Events, requests: StopRequests, heartbeat: Heartbeat, copies: Copies
) -> tuple[Progress, str]:
    """Fit, and however that ends: close everything, and leave word. Collective: call on every rank."""
    from finetune.checkpoint import Saver
    from finetune.guards import NotFiniteError

    config, world = training.config, training.world
    saver = Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous)
    reason, message = "failed", None
    try:
        progress, reason = fit_and_show(training, progress, events, saver, requests, copies)
    except NotFiniteError as error:
        reason, message = error.reason, str(error)
        saver.finish()  # all ranks are here, and what is being written is from before the bad number
        raise
    except BaseException as error:
        message = heartbeat.fail(error)  # before anything that may wait: other ranks stand in a collective
        raise
    finally:
        saver.close()
        reached = max(progress.step, events.reached)  # after a failure `progress` is still where the run started
        events.note("stopped", reached, reason=reason)
        events.close()
        if world.is_main:
            leave_word(config.run.dir, reached, reason, message)
    return progress, reason


def fit_and_show(
    training: Training, progress: Progress, events: Events, saver: Saver, requests: StopRequests, copies: Copies
) -> tuple[Progress, str]:
    """Fit, while samples are made and checkpoints copied beside it; both are through when this returns. Collective: call on every rank."""
    from finetune.loop import fit
    from finetune.world import once

    with sampling.Sampler(training.config, training.total, events, training.world.is_main) as sampler, requests:

        def after_step(step: int) -> None:
            sampler.after_step(step)
            copies.advance(events)

        progress, ended = fit(training, progress, events, saver, requests, after_step)
        if ended == "finished":
            sampler.finish(requests)
    once(training.world, lambda: copies.finish(events))
    return progress, ended


def both(first: Listener, second: Listener, kind: str, step: int, facts: dict[str, Any]) -> None:
    """Two listeners as one."""
    first(kind, step, facts)
    second(kind, step, facts)


def leave_word(run_dir: Path, step: int | None, reason: str, message: str | None) -> None:
    """Why the run ended, for whoever finds it: the launcher turns every exit code into 1."""
    from finetune import checkpoint, files
    from finetune.assembly import WORD

    committed = checkpoint.steps_in(checkpoint.folder_of(run_dir))
    word = {"reason": reason, "message": message, "step": step, "last_commit": committed[0].name if committed else None}
    files.write_json(run_dir / WORD, {**word, "host": platform.node()})


def leave_last_word(run_dir: Path, message: str) -> None:
    """For a rank that cannot end in good order, unless another one has said why."""
    from finetune.assembly import WORD

    if not (run_dir / WORD).exists():
        leave_word(run_dir, None, "failed", message)


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
