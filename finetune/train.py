"""overtone train --recipe NAME [--config FILE …] [--section.key value …]      one process, on one GPU or on the CPU
overtone train --launch fsdp2 --recipe NAME …      a process on each visible GPU, by the launch file configs/fsdp2.yaml
accelerate launch --config_file configs/fsdp2.yaml finetune/train.py --recipe NAME …      the same by accelerate's own command

The run's folder holds its checkpoints, log and curve; the same command again resumes from the newest good checkpoint.
`--recipe NAME --help` lists every key. Beside --launch FILE, accelerate's --num_processes, --num_machines, --machine_rank,
--main_process_ip and --main_process_port work, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import overtone` finds nothing
    sys.path[0] = next(str(folder) for folder in Path(__file__).resolve().parents if (folder / "overtone").is_dir())

import importlib.util
import os
from typing import NamedTuple, NoReturn

from overtone.finetune import launcher
from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.config import Config, describe_overlay, help_text, list_sources, resolve_sources
from overtone.finetune.config_diff import flatten
from overtone.finetune.config_sources import Arguments, ConfigSource, format_settings, parse_arguments, read_config_file
from overtone.finetune.data.raw_data_files import explain_raw_data
from overtone.finetune.errors import ElsewhereError, UserError, catch_user_errors
from overtone.finetune.hardware import cuda_allocator
from overtone.finetune.monitoring.run_records import SAMPLED
from overtone.finetune.recipe import Recipe, built_in_recipes, find_recipe, load_data_preparation, load_options, load_recipe
from overtone.finetune.storage import remote
from overtone.finetune.storage.model_resolver import is_hub_name
from overtone.finetune.terminal import print_line, protect_terminal
from overtone.finetune.training import generation_during_training

EXAMPLES = """
examples:
  overtone train --recipe {recipe} --data.train data/me/train.jsonl --data.val data/me/val.jsonl --run.dir runs/me
  overtone train --recipe {recipe} --config mine.yaml --train.lr 5e-6 --model.lora.rank 16
  overtone plan --recipe {recipe} --gpus 8                  memory, time and problems, before anything runs"""


@catch_user_errors
def main(argv: list[str]) -> int:
    """Train as the command line says; returns the exit code."""
    arguments = parse_arguments(argv, launcher.FLAGS)
    if arguments.help:
        print_help(__doc__, arguments)
        return 0
    wanted = launcher.take_launch(arguments)
    if wanted is not None and wanted.starts_processes:
        config = check_config(arguments)  # also finds the recipe that a config file names
        return launcher.launch(wanted, list_words(arguments), config.run.dir)
    try:
        config, recipe = prepare_training(arguments, only_trains=True)
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        raise ElsewhereError(str(error)) from error  # every process of a machine finds the same mistake; one reports it
    from overtone.finetune.training.run import process_group, train

    with process_group(config.log.trackers, config.run.dir) as world:
        train(world, config, recipe)
    return 0


def prepare_training(arguments: Arguments, only_trains: bool) -> tuple[Config, Recipe]:
    """Return the checked config, and its recipe. Raises `UserError`.

    `only_trains`: the process does nothing else, so that its allocator may be set up for training (`cuda_allocator`).
    """
    launcher.check_engine(os.environ)
    given, is_main = read_arguments(arguments), os.environ.get("RANK", "0") == "0"
    config = resolve_config(given)
    check_inputs(config)
    if is_main:
        report_overlay(given)
    setting = cuda_allocator.use_expandable_segments(os.environ) if only_trains else None  # before torch is imported, as recipes may do
    if is_main:
        for line in filter(None, (setting, f"loading torch and the recipe {config.recipe} …")):
            print_line(line)
    return config, load_checked_recipe(config)


def print_help(about: str | None, arguments: Arguments) -> None:
    """Print what a verb does, `about`, and every config key; with --recipe also those of the recipe."""
    folder = find_recipe(arguments.recipe) if arguments.recipe else None
    own = flatten(read_config_file(folder / "config.yaml").values) if folder and (folder / "config.yaml").is_file() else {}
    print_line(f"{about}\n{help_text(load_options(folder) if folder else None, own)}")
    print_line(EXAMPLES.format(recipe=arguments.recipe or "voice_clone"))


def check_config(arguments: Arguments) -> Config:
    """Return the resolved config, with inputs that exist. Raises `UserError`. Imports no torch, unless a recipe without options.py does."""
    config = resolve_config(read_arguments(arguments))
    check_inputs(config)
    return config


def resolve_config(given: GivenConfig) -> Config:
    """Return the config of the recipe, the --config files and the command line. Raises `UserError` for a wrong key or value."""
    return resolve_sources(given.recipe, load_options(find_recipe(given.recipe)), given.sources)


class GivenConfig(NamedTuple):
    """The sources of a config, each of which was read once."""

    recipe: str
    sources: list[ConfigSource]
    """The lowest precedence first: the recipe's config.yaml, the --config files, the command line."""


def read_arguments(arguments: Arguments) -> GivenConfig:
    """Read all sources of the config. Without --recipe, the recipe is the built-in one that the last of the config files names, as the
    output of `plan` does, and it is set in `arguments`. The path of another recipe counts only on the command line: it leads to code, and a
    config may come from anywhere. Raises `UserError` for a source that cannot be read, and if there is no recipe."""
    files = [read_config_file(path) for path in arguments.files]
    if arguments.recipe is None:
        named = (file.values.get("recipe") for file in reversed(files))
        arguments.recipe = next((name for name in named if isinstance(name, str) and name in built_in_recipes()), None)
    if arguments.recipe is None:
        raise UserError("which recipe? give --recipe NAME, for example --recipe voice_clone")
    own = read_config_file(find_recipe(arguments.recipe) / "config.yaml")
    return GivenConfig(arguments.recipe, list_sources([own, *files], arguments.overrides, arguments.settings))


def list_words(arguments: Arguments) -> list[str]:
    """Return arguments as words of a command line."""
    assert arguments.recipe is not None  # set by `read_arguments`
    files = [word for path in arguments.files for word in ("--config", str(path))]
    given = [*arguments.overrides, *format_settings(arguments.settings)]
    flags = [[f"--{key}={value}"] if value.startswith("--") else [f"--{key}", value] for key, value in given]
    return ["--recipe", arguments.recipe, *files, *(word for words in flags for word in words)]


def report_overlay(given: GivenConfig) -> None:
    """Print the keys that the `lora:` section of a config file sets."""
    for line in describe_overlay(given.sources):
        print_line(line)


def load_checked_recipe(config: Config) -> Recipe:
    """Return the recipe of a config. Raises `UserError` if it cannot do what `sample` wants."""
    recipe = load_recipe(find_recipe(config.recipe))
    generation_during_training.check(config.sample, BestBy.parse(config.checkpoint.best_by), config.recipe, recipe)
    return recipe


def check_inputs(config: Config) -> None:
    """Raises `UserError` for data or a tracker that is missing. Needs neither torch nor a device."""
    if not config.data.training_files():
        advice = load_data_preparation(find_recipe(config.recipe)).advice
        raise UserError(f"no training data: give --data.train FOLDER/train.jsonl, or several files as data.mix. {advice}")
    check_given_inputs(config)


def check_given_inputs(config: Config) -> None:
    """`check_inputs`, but training data may be missing."""
    if config.data.train is not None and config.data.mix:
        raise UserError(
            f"data.train: {config.data.train} and data.mix are both set; list that file in data.mix, and set --data.train null, or remove "
            "data.mix"
        )
    by_samples = (config.checkpoint.best_by or "").startswith(SAMPLED)  # `generation_during_training.check` checks these
    if config.data.val is None and not by_samples and (config.train.patience is not None or config.checkpoint.best_by is not None):
        key = "train.patience" if config.train.patience is not None else "checkpoint.best_by"
        raise UserError(f"{key} is set, but there are no evaluations without validation data; give --data.val FILE, or remove {key}")
    if config.data.mix:
        from overtone.finetune.data.mixture import name_sources  # here, since --help needs no numpy

        name_sources([file.path for file in config.data.mix])  # raises for a file that is listed twice, before all are read
    if isinstance(config.data.val, tuple):
        from overtone.finetune.data.mixture import name_validation_sources

        name_validation_sources(config.data.val)
    for tracker in config.log.trackers:
        found = importlib.util.find_spec(tracker)
        if found is None or found.origin is None:  # no origin: a plain folder, such as the one that wandb leaves where it ran
            raise UserError(f"log.trackers: {tracker} is not installed; `pip install {tracker}`, or take it out of the list")
    if config.checkpoint.copy_to is not None:
        require_secrets("checkpoint.copy_to", config.checkpoint.copy_to)
    trained = "data.mix" if config.data.mix else "data.train"
    for key, path in (
        *((trained, path) for path in config.data.training_files()),
        *(("data.val", path) for path in config.data.validation_files()),
    ):
        if isinstance(path, RemoteAddress):
            require_secrets(key, path)
            remote.find_file(path)
        elif path is not None and path.exists():
            form = load_data_preparation(find_recipe(config.recipe))
            if problem := explain_raw_data(key, path, form.verb, form.row_keys):
                raise UserError(problem)
        elif path is not None:
            if is_hub_name(str(path)) and not path.suffix:
                raise UserError(f"{key}: {path} does not exist; for a dataset on the hub write hf://datasets/{path}/{key[5:]}.jsonl")
            if path.name == "val.jsonl" and path.with_name("train.jsonl").is_file():
                raise UserError(
                    f"{key}: {path} does not exist: no row of that dataset was chosen to validate on; remove --{key}, or prepare the data "
                    "again with a larger --val-share"
                )
            advice = load_data_preparation(find_recipe(config.recipe)).advice
            raise UserError(f"{key}: {path} does not exist (looked from {Path.cwd()}). {advice}")


def require_secrets(key: str, address: RemoteAddress) -> None:
    """Raises `UserError` for an address from a saved config, which has no secrets."""
    if address.lacks_secrets:
        raise UserError(
            f"{key}: {address}: a user, a password or a query such as a signature is not saved with a run; give --{key} "
            "with the whole address"
        )


def end_process(code: int) -> NoReturn:
    """End this process without the interpreter's shutdown, which now and then aborted a rank that had finished ("terminate called without
    an active exception": C++ destroys a running thread), and the launcher ended the others with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    protect_terminal()
    end_process(main(sys.argv[1:]))
