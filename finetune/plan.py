"""python -m finetune plan --recipe NAME [--config FILE …] [--section.key value …] [--gpus 8] [--nodes 2] [--gpu h100-80gb] [--write FILE]

Shows a run before it is started, without weights, data or a GPU. First every key with its value and where that comes from; then, as
comments behind it, what the run will need: parameters, steps, checkpoints, time; the memory of a GPU term by term; the strategy to take
and why not another one; and what would fail later. The whole is YAML that is itself a valid --config.

    --gpus N --nodes N         GPUs of a machine, and machines; 1 and 1 unless said
    --gpu NAME                 what they are; h100-80gb unless said
    --write FILE               leave a launch file for accelerate there
    --settings                 the settings alone, at once
    --show-batch               the settings and the first micro-batch, sample by sample, with what is learned standing out
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from finetune import files, sampling
from finetune.config import Config, on_disk
from finetune.errors import UserError, exit_code
from finetune.gpus import Cluster, cluster
from finetune.layers import Arguments, Dumper, command_line, parse_arguments, read_layer
from finetune.recipe import Recipe, find_recipe, load_recipe
from finetune.train import check_inputs, checked_config, checked_recipe, print_help, resolved_config

if TYPE_CHECKING:
    from finetune.world import World

SHOW_BATCH, SETTINGS = "--show-batch", "--settings"


@dataclass(frozen=True)
class Wishes:
    """What is asked of a plan besides the config."""

    cluster: Cluster
    write: Path | None
    """Where a launch file is left."""


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    arguments = parse_arguments([argument for argument in argv if argument not in (SHOW_BATCH, SETTINGS)])
    if arguments.help:
        print_help(__doc__, arguments)
        return 0
    if SHOW_BATCH in argv or SETTINGS in argv:
        config = checked_config(arguments)
        recipe = checked_recipe(config) if SHOW_BATCH in argv or sampling.is_configured(config) else None
        print(table(config, origins(arguments)))
        if SHOW_BATCH in argv and recipe is not None:
            show_batch(config, recipe)
        return 0
    wishes = take_wishes(arguments)
    config = resolved_config(arguments)  # missing data is told with all else that is missing
    print(table(config, origins(arguments)), flush=True)
    foretell(config, load_recipe(find_recipe(config.recipe)), wishes, arguments)
    return 0


def take_wishes(arguments: Arguments) -> Wishes:
    """The plan's own flags, taken out of the overrides. Raises `UserError` for a number that is none, and an unknown GPU."""
    given = {key: value for key, value in arguments.overrides if key in ("gpus", "nodes", "gpu", "write")}
    arguments.overrides = [(key, value) for key, value in arguments.overrides if key not in given]
    for key in ("gpus", "nodes"):
        if not given.get(key, "1").isdecimal():
            raise UserError(f"--{key} {given[key]}: expected a number, as in --{key} 8")
    wanted = cluster(given.get("gpu", "h100-80gb"), int(given.get("gpus", "1")), int(given.get("nodes", "1")))
    write = Path(given["write"]) if "write" in given else None
    if write is not None and write.exists():
        raise UserError(f"--write {write}: exists already; remove it or choose another name")
    return Wishes(wanted, write)


def foretell(config: Config, recipe: Recipe, wishes: Wishes, arguments: Arguments) -> None:
    """Print what the run will need, and write the launch file."""
    from finetune.foresight import foresee
    from finetune.launch_file import launch_file
    from finetune.prospect import consider, lines

    foreseen = foresee(config, recipe)
    prospect = consider(foreseen, wishes.cluster)
    seen = prospect.look(recipe)
    problems = [*complaints(config, recipe), *prospect.problems(seen)]
    command = said_again(arguments)
    for line in lines(prospect, command, seen, problems):
        print(f"# {line}".rstrip())
    if wishes.write is not None:
        files.write_text(wishes.write, launch_file(prospect.best, wishes.cluster, str(wishes.write), command))
        print(f"# wrote {wishes.write}")


def said_again(arguments: Arguments) -> str:
    """The run's own part of the command line."""
    keys = "".join(f" --{key} {value}" for key, value in arguments.overrides)
    return f"--recipe {arguments.recipe}{''.join(f' --config {path}' for path in arguments.files)}{keys}"


def complaints(config: Config, recipe: Recipe) -> Iterator[str]:
    """What `train` would refuse at once."""
    for check in (lambda: check_inputs(config), lambda: sampling.check(config, recipe)):
        try:
            check()
        except UserError as problem:
            yield str(problem)


def origins(arguments: Arguments) -> dict[str, str]:
    """Dotted key → the file and line, or the flag, that decides it. Keys that nobody mentions are missing."""
    assert arguments.recipe is not None  # `resolved_config` refused the command line otherwise
    files = [find_recipe(arguments.recipe) / "config.yaml", *arguments.files]
    layers = [*(read_layer(path) for path in files), command_line(arguments.overrides)]
    return {key: place for layer in layers for key, place in layer.origins.items()}


def table(config: Config, places: dict[str, str]) -> str:
    """The config as YAML, with the origin of each value behind it."""
    lines = [*_lines(config.model_dump(mode="json"), "", places)]
    width = min(60, max(len(line) for line, _ in lines))
    return "\n".join(f"{line:<{width}}  # {place}" if place else line for line, place in lines)


def _lines(values: dict[str, Any], prefix: str, places: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    indent = "  " * prefix.count(".")
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:", None
            yield from _lines(value, f"{key}.", places)
        else:
            text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"))
            yield f"{indent}{name}: {text.removesuffix('...' + chr(10)).rstrip()}", places.get(key, "default")


def show_batch(config: Config, recipe: Recipe) -> None:
    """Print the samples that a fresh run would train on first."""
    if recipe.show is None:
        raise UserError(f"{SHOW_BATCH}: the recipe {config.recipe} has no `show`, so it cannot say what its samples look like")
    from finetune import world as worlds

    world = worlds.join((), config.run.dir)
    try:
        for line in first_batch(config, recipe, world):
            print(line)
    finally:
        worlds.leave()


def first_batch(config: Config, recipe: Recipe, world: World) -> Iterator[str]:
    """The first micro-batch of the first epoch, after an account of the rows left out. The index made for it serves the run too."""
    from finetune.batches import Loader, Order, micro_batches
    from finetune.intake import account, check_batching, data_key, open_data

    train = on_disk(config.data.train)
    assert recipe.show is not None and train is not None
    check_batching(config, recipe)
    recipe.prepare(config)
    loaded = recipe.load(config)
    rows = open_data(train, config.run.dir / "cache", data_key(config, loaded), recipe, loaded, config, world)
    assert rows is not None
    yield from account(rows)
    micro = micro_batches(Order.of(config), rows.lengths, epoch=0, window=0)[0]
    yield f"\nthe first micro-batch: {len(micro.ids)} of {len(rows):,} rows, {micro.tokens:,} positions"
    loader = Loader(rows, recipe, rank=0, size=1)
    for row in micro.ids:
        yield f"\n── {rows.where(row)}"
        yield recipe.show(loader.sample(row), loaded.processor)
    loader.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
