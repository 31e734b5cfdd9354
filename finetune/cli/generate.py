"""overtone generate --model MODEL …

Generates speech or text with an exported model: a folder, or a hub name (owner/model). The model names its recipe, which has further
options; they are listed below, those of one recipe with --recipe NAME --help.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overtone.finetune.argument_parsing import also_known
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.monitoring.run_records import CHECKPOINTS
from overtone.finetune.recipe import built_in_recipes, choose_recipe, find_recipe, load_inference
from overtone.finetune.storage import files
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.strict_json import read_object
from overtone.finetune.terminal import announce_torch, print_line

INFERENCE = {
    "generate": "generate",
    "chat": "chat",
    "serve": "serve",
    "ray-serve": "plan_replica",
    "eval-voice": "evaluate",
    "select": "select",
    "pairs": "pairs",
}
"""Verb → the function of a recipe's `inference` that it calls."""


MODEL_FLAGS = ("--model", "--recipe", "--strength")
"""Flags of each verb that works with models, besides those of the recipe."""


@catch_user_errors
@also_known(*MODEL_FLAGS)
def main(argv: list[str]) -> int:
    """Generate with the model on the command line; returns the exit code."""
    chosen = choose_model("generate", __doc__, argv)
    if chosen is None:
        return 0
    model, name, given = chosen
    announce_torch(f"the model {model}")
    return load_inference(find_recipe(name)).generate(ensure_exported(model, name, given.strength), given.rest)


@dataclass(frozen=True)
class ModelArguments:
    """The command line of a verb that works with models."""

    models: list[str]
    """One or more, as given on the command line: folders, names of demo models, or names on the hub."""
    recipe: str | None
    """If given, it overrides the name in the models' own files."""
    rest: list[str]
    """Arguments for the recipe."""
    strength: float | None = None
    """Factor of the update, as in `overtone export`, for runs and checkpoints."""


def parse_model_arguments(verb: str, about: str | None, argv: list[str]) -> ModelArguments | None:
    """Separate the verb's own arguments from the recipe's. None after printing help. Raises `UserError` without a model."""
    parser = argparse.ArgumentParser(
        f"overtone {verb}",
        description=about,
        add_help=False,
        allow_abbrev=False,  # else --mode of a recipe would be taken for --model
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="an exported folder; or a run or a checkpoint, which is exported first; or a hub name (owner/model) or a demo model",
    )
    parser.add_argument("--recipe", help="for a folder that another tool wrote, or a recipe that does not come with the package")
    parser.add_argument("--strength", type=float, metavar="S", help="of a run or a checkpoint: scale its update, as `overtone export` does")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.model is not None:
        return ModelArguments(arguments.model, arguments.recipe, rest, arguments.strength)
    if {"-h", "--help"} & set(rest):
        parser.print_help()
        if arguments.recipe is not None:
            print_recipe_help(verb, arguments.recipe)
        else:
            print_help_of_recipes(verb)
        return None
    raise UserError("which model? give --model MODEL: a run, what `overtone export RUN --to FOLDER` made, or its hub name (owner/model)")


def print_recipe_help(verb: str, name: str) -> None:
    """Print the options that a recipe adds to a verb. Raises `UserError` for a recipe without this verb."""
    inference = load_inference(find_recipe(name))
    print_help = inference.help.get(verb)
    if print_help is None:
        use = getattr(inference, INFERENCE[verb])
        if use is None:
            raise UserError(f"--recipe {name}: this recipe has no `{verb}`")
        print_help = partial(use, [Path("MODEL")] if verb == "serve" else Path("MODEL"), ["--help"])
    print_line(f"\noptions of the recipe {name}:\n")
    with contextlib.suppress(SystemExit):  # argparse exits after printing its help
        print_help()


def print_help_of_recipes(verb: str) -> None:
    """Print the options that the built-in recipes add to a verb, of those that can say so without torch."""
    for name in built_in_recipes():
        if verb in load_inference(find_recipe(name)).help:
            print_recipe_help(verb, name)
    print_line(f"\noptions of one recipe: overtone {verb} --recipe NAME --help")


def choose_model(verb: str, about: str | None, argv: list[str]) -> tuple[Path, str, ModelArguments] | None:
    """Return the model that `ensure_exported` takes, the name of its recipe, and the command line. None after printing help."""
    given = parse_model_arguments(verb, about, argv)
    if given is None:
        return None
    return *find_model(given.models[-1], given.recipe, given.rest), given


def find_model(model: str, recipe: str | None, rest: list[str]) -> tuple[Path, str]:
    """Return a --model as the folder that `ensure_exported` takes, and the name of its recipe.

    Of a model on the hub, the file that names the recipe is downloaded first, and the weights are not if `rest` only requests help. Raises
    `UserError` if the model does not exist, or names no recipe.
    """
    folder = resolve_model("--model", model, [CARD, "config.json"])
    if not (folder / CARD).is_file() and commit_of(folder) is not None and recipe is None:
        raise UserError(
            f"--model {model}: the repository contains no {CARD}, so it was not exported by this package; name its recipe, as in "
            f"--recipe {' or --recipe '.join(built_in_recipes())}"
        )
    located = locate_model(folder)
    name = find_recipe_name(located, recipe)
    if commit_of(folder) is not None and not {"-h", "--help"} & set(rest):
        return resolve_model("--model", model, revision=commit_of(folder)), name
    return located, name


def locate_model(given: Path) -> Path:
    """An exported folder as it is; for a run the newest good checkpoint, and for a checkpoint the same, verified."""
    if (given / CARD).is_file() or not ((given / CHECKPOINTS).is_dir() or is_checkpoint(given)):
        return given
    announce_torch(f"the model {given}")
    from overtone.finetune.checkpointing import checkpoint

    return checkpoint.find(given)


def is_checkpoint(folder: Path) -> bool:
    return (folder / "state.json").is_file() and not (folder / CARD).is_file()


def ensure_exported(model: Path, recipe: str, strength: float | None = None) -> Path:
    """An exported folder as it is; a checkpoint is exported by its recipe, once for each strength, into the cache of the run. Raises
    `UserError` for a strength of an exported folder, whose base is not known here."""
    if not is_checkpoint(model):
        if strength is not None:
            raise UserError(f"--strength {strength:g}: {model} is exported already; give the run, or export it again with --strength")
        return model
    from overtone.finetune.exporting import export

    # Another run in the same folder may reach the same step; what the checkpoint holds is in its manifest.
    weaker = "" if strength in (None, 1) else f"-strength-{strength!r}"
    target = model.parent.parent / "cache" / "exports" / f"{model.name}-{files.digest(model / 'manifest.json')[:8]}{weaker}"
    if not target.exists():
        export.export(model, target, recipe=recipe, strength=1.0 if strength is None else strength)
    return target


def find_recipe_name(folder: Path, given: str | None) -> str:
    """Return the recipe of an exported folder or a checkpoint: the one `given` with --recipe, else the built-in one that its file names.

    Raises `UserError` for a folder that names none, and for any other name.
    """
    if given is not None:
        return given
    if is_checkpoint(folder):
        from overtone.finetune.checkpointing import checkpoint

        return choose_recipe(folder / "state.json", checkpoint.read_state(folder)["recipe"], None)
    try:
        name = read_object(folder / CARD)["recipe"]
    except (UserError, KeyError):
        raise UserError(
            f"--model {folder} is not an exported model ({CARD} is missing or unreadable); export one, or name its recipe with --recipe"
        ) from None
    return choose_recipe(folder / CARD, name, None)
