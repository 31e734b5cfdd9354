"""A recipe that was written for an earlier version loads and trains, and warnings name the new modules."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from finetune.moved_modules import MOVED
from tests.finetune import fork_server, tiny

ROOT = Path(__file__).parents[2]
OLD_RECIPE = Path(__file__).with_name("recipe_of_old_contract.txt")
"""tests/byte_model/recipe.py as an earlier version had it, unchanged."""
FILES_MOVED = "FutureWarning: finetune.files moved to finetune.storage.files; import finetune.storage.files instead (docs/add_a_recipe.md)"


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_a_recipe_of_the_old_contract_trains_and_its_warnings_name_what_to_change(tmp_path: Path) -> None:
    recipe, config = tmp_path / "mine", tiny.config_in(tmp_path)
    recipe.mkdir()
    shutil.copy(OLD_RECIPE, recipe / "recipe.py")
    shutil.copy(tiny.FOLDER / "config.yaml", recipe)
    own = ["--model.source", str(config.model.source), "--data.train", str(config.data.train), "--run.dir", str(tmp_path / "run")]
    arguments, environ = ["--recipe", recipe, *own, "--train.steps", "2"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = fork_server.run_command(ROOT / "finetune" / "train.py", *arguments, cwd=tmp_path, env=environ)
    assert done.returncode == 0 and "finished at step 2" in done.stdout, done.stderr
    warned = [line.removeprefix(f"{recipe / 'recipe.py'}:") for line in done.stderr.splitlines() if "Warning" in line]
    assert [line.partition(" ")[0] for line in warned] == ["15:", "18:", "115:", "115:"], "each names its line of the recipe"
    assert warned[0].endswith(FILES_MOVED)
    assert "finetune.models moved to finetune.modeling.loading; " in warned[1]
    assert "`read` of Recipe(…) gets the folder of the data file as its third argument; write def read(row, processor, folder)" in warned[2]
    assert "generate=… of Recipe(…) moved to its `inference`; " in warned[3]


def test_an_old_name_is_the_new_module_with_one_warning_and_without_torch() -> None:
    script = (
        "import sys, finetune.recipe, finetune.storage.files as new\n"
        "from finetune import files\n"
        "import finetune.files\n"
        "from finetune.files import write_text\n"
        "assert files is finetune.files is new and new.__spec__.name == new.__name__ == 'finetune.storage.files'\n"
        "print('torch' in sys.modules)"
    )
    done = run("-c", script)
    assert done.stdout == "False\n"
    assert done.stderr.splitlines() == [f"<string>:2: {FILES_MOVED}"]


def test_an_old_name_of_a_module_that_was_split_has_the_contents_of_both_parts() -> None:
    script = (
        "from recipes import transformers_models\n"
        "from recipes.transformers_models import find_blocks, find_file_names\n"
        "import recipes.transformers_meta_models as one, recipes.transformers_weight_names as other\n"
        "assert (find_blocks, transformers_models.find_file_names) == (one.find_blocks, other.find_file_names)\n"
        "from recipes.speech.dataset_rows import SpeakerClips, check_codes, list_training_files, shorten_source"
    )
    warned, other = run("-c", f"import finetune.recipe\n{script}").stderr.splitlines()
    assert warned == (
        "<string>:2: FutureWarning: recipes.transformers_models was split into recipes.transformers_meta_models, "
        "recipes.transformers_weight_names; import each name from the one that has it (docs/add_a_recipe.md)"
    )
    assert other.startswith("<string>:6: FutureWarning: recipes.speech.dataset_rows was split into recipes.speech.dataset_row_checks, ")


def test_of_several_ranks_one_warns_about_an_old_name() -> None:
    assert run("-c", "import finetune.recipe, finetune.files", RANK="1").stderr == ""


def test_a_module_that_exists_is_imported_instead_of_the_moved_one(tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text("MINE = True\n")
    script = f"import finetune.recipe; finetune.__path__.append({str(tmp_path)!r}); from finetune.files import MINE"
    assert run("-c", script).stderr == ""


def test_other_unknown_names_are_not_found() -> None:
    assert importlib.util.find_spec("finetune.attic") is None and importlib.util.find_spec("files") is None


def test_every_new_name_exists_and_the_page_lists_each_pair() -> None:
    assert all(importlib.util.find_spec(new) for parts in MOVED.values() for new in parts)
    page = (ROOT / "docs" / "add_a_recipe.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `((?:finetune|recipes)\.[\w.]+)` \| (`(?:finetune|recipes)\.[\w.`, ]+) \|$", page, re.MULTILINE)
    assert {old: tuple(re.findall(r"`([\w.]+)`", parts)) for old, parts in listed} == MOVED


MENTION = re.compile(rf"from finetune import|{'|'.join(map(re.escape, MOVED))}")


def old_imports(source: str) -> list[str]:
    if not MENTION.search(source):  # parsing all files takes seconds
        return []
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = [
        [alias.name for alias in node.names]
        if isinstance(node, ast.Import)
        else [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for node in imports
    ]
    return [name for names in named for name in names if name in MOVED]


def test_no_code_of_this_repository_imports_an_old_name() -> None:
    assert old_imports(OLD_RECIPE.read_text(encoding="utf-8")) == ["finetune.files", "finetune.models"]
    packages = ("finetune", "data_prep", "recipes", "tests", "benchmarks")
    sources = {path: path.read_text(encoding="utf-8") for package in packages for path in (ROOT / package).rglob("*.py")}
    assert len(sources) > 300
    assert [path for path, source in sources.items() if old_imports(source)] == []
