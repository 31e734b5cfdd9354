"""Finds a recipe by its name or folder, and imports all of it, or only the modules that need no torch."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel

from overtone.finetune.errors import UserError
from overtone.finetune.recipe.contract import Recipe
from overtone.finetune.recipe.inference import Inference
from overtone.finetune.recipe.planning import ReleasedModel
from overtone.finetune.recipe.samples import DataPreparation

PACKAGES = ("finetune", "data_prep", "recipes")
"""The packages below `overtone`."""


def find_recipe(name: str) -> Path:
    """Folder of a recipe: a name under `recipes/`, or the path of a folder that holds `recipe.py`. Imports nothing."""
    places = [Path(name)] if "/" in name or name.startswith(".") else [root / name for root in _recipe_roots()]
    for folder in places:
        if (folder / "recipe.py").is_file():
            return folder.resolve()
    known = ", ".join(built_in_recipes())
    raise UserError(
        f"--recipe {name}: no recipe.py in {' or '.join(map(str, places))}; known recipes: {known}, or give the path of a folder"
    )


def choose_recipe(place: Path, name: object, given: str | None) -> str:
    """The recipe of a run or an export: `given` on the command line, or else the `name` that stands in the file `place`.

    A file comes from anywhere, and to import a folder is to run it; so from a file only the name of a built-in recipe counts. Raises
    `UserError` for any other.
    """
    if given is not None:
        return given
    if isinstance(name, str) and name in built_in_recipes():
        return name
    raise UserError(
        f"{place} names the recipe {name!r}, which is not one of {', '.join(built_in_recipes())}; a recipe from outside of the package is "
        "code, and a file may not choose which code runs: if you trust it, give its folder yourself with --recipe PATH"
    )


def recipe_arguments(name: str) -> list[str]:
    """`--recipe` for the suggested command of a verb that reads a run: only for a recipe from outside of the package, which no file of a
    run may choose (see `choose_recipe`)."""
    return [] if name in built_in_recipes() else ["--recipe", name]


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted({path.parent.name for root in _recipe_roots() for path in root.glob("*/recipe.py")})


def load_recipe(folder: Path) -> Recipe:
    """Import `<folder>/recipe.py` and return its `RECIPE`. Raises `UserError` if it defines none."""
    recipe = getattr(_import(folder, "recipe"), "RECIPE", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"{folder / 'recipe.py'} must define RECIPE = Recipe(...); see docs/add_a_recipe.md")
    if _read_options_file(folder) not in (None, recipe.Options):
        raise UserError(f"{folder / 'recipe.py'}: Recipe(Options=…) must be given the Options of {folder / 'options.py'}")
    if _read_verbs_file(folder, "INFERENCE") not in (None, recipe.inference):
        raise UserError(f"{folder / 'recipe.py'}: Recipe(inference=…) must be given the INFERENCE of {folder / 'verbs.py'}")
    return recipe


def load_options(folder: Path) -> type[BaseModel]:
    """The recipe's `Options`: of `options.py` if that has the class, so that config and `--help` need neither `recipe.py` nor torch."""
    return _read_options_file(folder) or load_recipe(folder).Options


def load_inference(folder: Path) -> Inference:
    """`INFERENCE` of the recipe's `verbs.py`, which is imported without torch; of a recipe without that file, `RECIPE.inference`."""
    found = _read_verbs_file(folder, "INFERENCE")
    return found if isinstance(found, Inference) else load_recipe(folder).inference


def load_data_preparation(folder: Path) -> DataPreparation:
    """`DATA` of the recipe's `verbs.py`; general advice without it. Imports no torch."""
    found = _read_verbs_file(folder, "DATA")
    return found if isinstance(found, DataPreparation) else DataPreparation()


def _read_verbs_file(folder: Path, name: str) -> object:
    """The value `name` in `verbs.py`; None without the file or the name."""
    return getattr(_import(folder, "verbs"), name, None) if (folder / "verbs.py").is_file() else None


def load_released_models(folder: Path) -> tuple[ReleasedModel, ...]:
    """`RELEASED` of the recipe's `released_models.py`; empty without that file. Raises `UserError` for anything but `ReleasedModel`s."""
    if not (folder / "released_models.py").is_file():
        return ()
    found = getattr(_import(folder, "released_models"), "RELEASED", None)
    if not isinstance(found, tuple) or not all(isinstance(model, ReleasedModel) for model in found):
        raise UserError(f"{folder / 'released_models.py'} must define RELEASED = (ReleasedModel(...), ...); see docs/add_a_recipe.md")
    return found


def _read_options_file(folder: Path) -> type[BaseModel] | None:
    found = getattr(_import(folder, "options"), "Options", None) if (folder / "options.py").is_file() else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _import(folder: Path, name: str) -> ModuleType:
    """A module of a recipe."""
    if folder.parent.name == "recipes" and folder.parent in _recipe_roots():
        return importlib.import_module(f"overtone.recipes.{folder.name}.{name}")  # noqa: TID251 - a built-in recipe
    return _import_outside(folder, name)


def _recipe_roots() -> list[Path]:
    return [Path(__file__).resolve().parents[2] / "recipes"]


def _import_outside(folder: Path, module: str) -> ModuleType:
    """A folder outside the tree becomes a package of its own, so that its files can import each other relatively."""
    # By path, not by name: two folders may have the same name, and a dot in a name would read as a package inside another.
    package = f"outside_recipe_{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    for name, file in ((package, folder / "__init__.py"), (f"{package}.{module}", folder / f"{module}.py")):
        if name not in sys.modules:
            _import_file(name, file, [str(folder)] if name == package else None)
    return sys.modules[f"{package}.{module}"]


def _import_file(name: str, file: Path, inside: list[str] | None) -> None:
    """Import `file` as `name`; a package (with `inside`) may do without its file."""
    locate = importlib.util.spec_from_file_location  # noqa: TID251 - a recipe whose folder was given on the command line
    spec = locate(name, file, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be imported")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    if inside is not None and not file.is_file():
        return
    try:
        spec.loader.exec_module(module)
        _refuse_second_copies(file)
    except BaseException as error:
        del sys.modules[name]  # half of a module must not pass for the whole at the next import
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in PACKAGES:
            raise UserError(f"{file} imports {error.name}; import overtone.{error.name}") from error
        raise


def _refuse_second_copies(file: Path) -> None:
    """Raises `UserError` if a recipe imported this package by the names of its folders, which a clone has on the import path. That would
    load a second copy of each module, with different classes."""
    root = Path(__file__).resolve().parents[2]
    for name, module in sorted(sys.modules.items()):
        package, _, inside = name.partition(".")
        own = package in PACKAGES and Path(getattr(module, "__file__", None) or "/").is_relative_to(root)
        if own and inside not in ("", "__main__"):
            raise UserError(f"{file} imports {name}; import overtone.{name}")
