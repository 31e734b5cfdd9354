"""overtone cp NAME [TARGET]

Copy a recipe, its config, or a launch file, to change it:

  overtone cp voice_clone                 the recipe's code and configs, to ./voice_clone; train it with --recipe ./voice_clone
  overtone cp voice_clone/config.yaml     its config, to ./voice_clone.yaml; use it with --recipe voice_clone --config FILE
  overtone cp fsdp2.yaml                  a launch file for `train --launch`, to ./fsdp2.yaml
  overtone cp slurm.sh                    a batch script for SLURM, to ./slurm.sh
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.cli.install_paths import recipes_folder
from overtone.finetune.command_lines import configs_folder, join_words, overtone_command
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.recipe import built_in_recipes
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line


@catch_user_errors
def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "overtone cp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("name", metavar="NAME", help="a recipe, RECIPE/config.yaml, or a launch file; without a match, all are listed")
    parser.add_argument("target", type=Path, nargs="?", metavar="TARGET", help="folder or file to create; must not exist yet")
    arguments = parse_arguments(parser, argv)
    print_line(f"next: {copy(arguments.name, arguments.target)}")
    return 0


def copy(name: str, target: Path | None) -> str:
    """Copy what `name` means and return the command that uses the copy. Raises `UserError` for an unknown name and a used target."""
    recipe, _, file = name.partition("/")
    if recipe in built_in_recipes() and not file:
        folder = require_absent(target or Path(recipe))
        count = copy_recipe(recipes_folder() / recipe, folder)
        print_line(f"{folder}: {count} files of the recipe {recipe}; edit them freely")
        # Without a slash, it would be the name of a built-in recipe.
        named = folder if folder.is_absolute() or len(folder.parts) > 1 else f"./{folder}"
        return overtone_command("train", "--recipe", named, "--run.dir", f"runs/{folder.name}", "--data.train", "FILE")
    source = find_file(recipe, file)
    if source is None:
        near = difflib.get_close_matches(name, list_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"unknown name {name!r}; {hint}valid names are {', '.join(list_names())}")
    path = require_absent(target or Path(f"{recipe}.yaml" if source.name == "config.yaml" else source.name))
    with files.explain_write_errors(path.parent):
        files.write_text(files.make_folder(path.parent) / path.name, keep_schema(source))
    print_line(f"{path}: a copy of {source}")
    if file:
        return overtone_command("train", "--recipe", recipe, "--config", path, "--data.train", "FILE")
    if path.suffix == ".sh":
        return join_words(["sbatch", path, "--recipe", "RECIPE", "--data.train", "FILE"])
    return overtone_command("train", "--launch", path, "--recipe", "RECIPE", "--data.train", "FILE")


def keep_schema(source: Path) -> str:
    """Return the text of a config; where it names its JSON schema relative to its own folder, the path becomes absolute."""
    text = source.read_text(encoding="utf-8")
    return re.sub(r"(?m)^(# yaml-language-server: \$schema=)([\w.-]+)$", lambda line: f"{line[1]}{source.parent / line[2]}", text)


def find_file(recipe: str, file: str) -> Path | None:
    """Return the config (recipe and file) or launch file that a name means; None if there is none."""
    if file:
        known = {path.name: path for path in (recipes_folder() / recipe).glob("*.yaml")} if recipe in built_in_recipes() else {}
        return known.get(file)
    return launch_files().get(recipe)


def launch_files() -> dict[str, Path]:
    """Launch files and batch scripts by their names."""
    return {path.name: path for path in sorted([*configs_folder().glob("*.yaml"), *configs_folder().glob("cluster/*.sh")])}


def list_names() -> list[str]:
    """All names that can be copied."""
    recipes = built_in_recipes()
    configs = [f"{name}/{path.name}" for name in recipes for path in sorted((recipes_folder() / name).glob("*.yaml"))]
    return [*recipes, *configs, *sorted(launch_files())]


def require_absent(target: Path) -> Path:
    """Raises `UserError` if the target exists: a copy never replaces what somebody may have changed."""
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} already exists; give another target, as `overtone cp NAME TARGET`, or remove it")
    return target


def copy_recipe(recipe: Path, target: Path) -> int:
    """Copy the files that `recipe.py` needs, by one rename; returns their number. Demos and sample data stay where they are."""
    names = sorted(needed_files(recipe))
    with files.explain_write_errors(target.parent), files.new_folder(target) as temporary:
        for name in names:
            files.copy_into(recipe / name, temporary / name)
    return len(names)


def needed_files(recipe: Path) -> set[Path]:
    """Return the files of a recipe, relative to its folder: `recipe.py`, `options.py`, `verbs.py` and `speech_registration.py`, which are
    imported by name, the modules that these import, relatively and at any depth, and every file in their folders that is not a module."""
    modules = set[Path]()
    entry_files = ("__init__.py", "recipe.py", "options.py", "verbs.py", "speech_registration.py")
    pending = [Path(name) for name in entry_files if (recipe / name).is_file()]
    while pending:
        module = pending.pop()
        if module not in modules:
            modules.add(module)
            pending.extend(imported_files(recipe, module))
    folders = {module.parent for module in modules}
    beside = [path for folder in folders for path in (recipe / folder).iterdir() if path.is_file() and path.suffix != ".py"]
    return modules | {path.relative_to(recipe) for path in beside}


def imported_files(recipe: Path, module: Path) -> Iterator[Path]:
    """Yield the files of the recipe that a module imports relatively, with the `__init__.py` of their folders."""
    for node in ast.walk(ast.parse((recipe / module).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        above = [module.parent, *module.parent.parents]
        place = above[node.level - 1] / (node.module or "").replace(".", "/") if node.level <= len(above) else None
        if place is None:
            continue
        for found in (place.with_suffix(".py") if place.name else place, *(place / f"{alias.name}.py" for alias in node.names)):
            if (recipe / found).is_file():
                yield found
                yield from (each / "__init__.py" for each in found.parents if (recipe / each / "__init__.py").is_file())
