"""python -m finetune plan --recipe NAME [--config FILE …] [--section.key value …] [--show-batch]

Shows a run before it is started: every key with its value and where that comes from, as YAML that is itself a valid --config. With
--show-batch also the first micro-batch, sample by sample, with what is learned standing out. Every row of the data is read and checked for
that; no weights are, and no accelerator is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import yaml

from finetune.config import Config, help_text
from finetune.errors import UserError, exit_code
from finetune.layers import Arguments, Dumper, command_line, parse_arguments, read_layer
from finetune.recipe import Recipe, find_recipe, load_recipe
from finetune.train import settle

if TYPE_CHECKING:
    from finetune.world import World

SHOW_BATCH = "--show-batch"


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    arguments = parse_arguments([argument for argument in argv if argument != SHOW_BATCH])
    if arguments.help:
        options = load_recipe(find_recipe(arguments.recipe)).Options if arguments.recipe else None
        print(f"{__doc__}\n{help_text(options)}\n  {SHOW_BATCH:<26} show the first micro-batch, with what is learned marked")
        return 0
    config, recipe = settle(arguments)
    print(table(config, origins(arguments)))
    if SHOW_BATCH in argv:
        show_batch(config, recipe)
    return 0


def origins(arguments: Arguments) -> dict[str, str]:
    """Dotted key → the file and line, or the flag, that decides it. Keys that nobody mentions are missing."""
    assert arguments.recipe is not None  # settle made sure
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

    assert recipe.show is not None and config.data.train is not None
    check_batching(config, recipe)
    recipe.prepare(config)
    loaded = recipe.load(config)
    rows = open_data(config.data.train, config.run.dir / "cache", data_key(config, loaded), recipe, loaded, config, world)
    assert rows is not None
    yield from account(rows)
    micro = micro_batches(Order.of(config), rows.lengths, epoch=0, window=0)[0]
    yield f"\nthe first micro-batch: {len(micro.ids)} of {len(rows):,} rows, {micro.tokens:,} positions"
    loader = Loader(rows, recipe, loaded.processor, rank=0, size=1)
    for row in micro.ids:
        yield f"\n── {rows.where(row)}"
        yield recipe.show(loader.sample(row), loaded.processor)
    loader.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
