"""python -m finetune generate --model FOLDER …

Generates speech or text with an exported model. The folder names its recipe; add --help for the options of that recipe.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from finetune.errors import UserError, exit_code
from finetune.exporting.card import CARD
from finetune.recipe import choose_recipe, find_recipe, load_recipe
from finetune.storage import demo_models, files
from finetune.storage.strict_json import read_object


def main(argv: list[str]) -> int:
    return exit_code(run, argv)


def run(argv: list[str]) -> int:
    """Generate with the model on the command line; returns the exit code."""
    chosen = choose_model("generate", __doc__, argv)
    if chosen is None:
        return 0
    model, name, rest = chosen
    return load_recipe(find_recipe(name)).inference.generate(ensure_exported(model, name), rest)


@dataclass(frozen=True)
class ModelArguments:
    """The command line of a verb that works with models."""

    models: list[Path]
    """One or more, as given on the command line."""
    recipe: str | None
    """If given, it overrides the name in the models' own files."""
    rest: list[str]
    """Arguments for the recipe."""


def parse_model_arguments(verb: str, about: str | None, argv: list[str]) -> ModelArguments | None:
    """Separate the verb's own arguments from the recipe's. None after printing help. Raises `UserError` without a model."""
    parser = argparse.ArgumentParser(
        f"finetune {verb}",
        description=about,
        add_help=False,
        allow_abbrev=False,  # else --mode of a recipe would be taken for --model
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        type=demo_models.as_folder,
        action="append",
        metavar="FOLDER",
        help="an exported folder; or a run or a checkpoint, which is exported first; or the name of a demo model",
    )
    parser.add_argument("--recipe", help="for a folder that another tool wrote, or a recipe that does not come with the package")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.model is not None:
        return ModelArguments(arguments.model, arguments.recipe, rest)
    if {"-h", "--help"} & set(rest):
        parser.print_help()
        return None
    raise UserError("which model? give --model FOLDER: a run, or what `python -m finetune export RUN --to FOLDER` made")


def choose_model(verb: str, about: str | None, argv: list[str]) -> tuple[Path, str, list[str]] | None:
    """The model that `ensure_exported` takes, the name of its recipe, and the recipe's arguments. None after printing help."""
    given = parse_model_arguments(verb, about, argv)
    if given is None:
        return None
    model = locate_model(given.models[-1])
    return model, find_recipe_name(model, given.recipe), given.rest


def locate_model(given: Path) -> Path:
    """An exported folder as it is; for a run the newest good checkpoint, and for a checkpoint the same, verified."""
    if (given / CARD).is_file() or not ((given / "checkpoints").is_dir() or is_checkpoint(given)):
        return given
    from finetune.checkpointing import checkpoint

    return checkpoint.find(given)


def is_checkpoint(folder: Path) -> bool:
    return (folder / "state.json").is_file() and not (folder / CARD).is_file()


def ensure_exported(model: Path, recipe: str) -> Path:
    """An exported folder as it is; a checkpoint is exported by its recipe, once, into the cache of the run."""
    if not is_checkpoint(model):
        return model
    from finetune.exporting import export

    # Another run in the same folder may reach the same step; what the checkpoint holds is in its manifest.
    target = model.parent.parent / "cache" / "exports" / f"{model.name}-{files.digest(model / 'manifest.json')[:8]}"
    if not target.exists():
        export.export(model, target, recipe=recipe)
    return target


def find_recipe_name(folder: Path, given: str | None) -> str:
    """The recipe of an exported folder or a checkpoint: the one `given` with --recipe, else the built-in one that its file names.

    Raises `UserError` for a folder that names none, and for any other name.
    """
    if given is not None:
        return given
    if is_checkpoint(folder):
        from finetune.checkpointing import checkpoint

        return choose_recipe(folder / "state.json", checkpoint.read_state(folder).get("recipe"), None)
    try:
        name = read_object(folder / CARD)["recipe"]
    except (UserError, KeyError):
        raise UserError(
            f"--model {folder} is no exported model ({CARD} is missing or unreadable); export one, or name its recipe with --recipe"
        ) from None
    return choose_recipe(folder / CARD, name, None)
