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
from typing import NoReturn

from finetune import cuda_allocator, remote, sampling
from finetune.config import Config, help_text, resolve
from finetune.errors import ElsewhereError, UserError, exit_code
from finetune.layers import Arguments, parse_arguments
from finetune.recipe import Recipe, find_recipe, load_recipe


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
        raise ElsewhereError(str(error)) from error  # every process of a machine finds the same mistake; one reports it
    setting = cuda_allocator.use_expandable_segments(os.environ)  # before torch is imported
    if setting is not None and os.environ.get("RANK", "0") == "0":
        print(setting, flush=True)
    from finetune.training_run import process_group, train

    with process_group(config) as world:
        train(world, config, recipe)
    return 0


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


def end(code: int) -> NoReturn:
    """End this process without the interpreter's own end: there a rank that had done everything was aborted now and then ("terminate called
    without an active exception", as C++ says when a running thread is destroyed), and the launcher took the others with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
