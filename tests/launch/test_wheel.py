"""What is installed from the wheel works without the repository: verbs, recipes with their data, launch files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from overtone.finetune.config_sources import load_yaml
from overtone.finetune.storage import demo_models
from tests.launch.launching import ALONE, ROOT, voice_rows

FOLDERS = ("finetune", "data_prep", "recipes", "studio", "configs")
SHIPPED = ("overtone", *FOLDERS, "pyproject.toml", "LICENSE", "README.md", ".gitignore", "constraints.txt", "constraints-chat.txt")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel that pip makes of the sdist, and in `tree/` the one that it makes of the tree."""
    source, wheels = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in SHIPPED:
        if (ROOT / name).is_dir():  # a copy, since a build writes beside its sources
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    hatch = "import hatchling.build, sys; print(hatchling.build.build_sdist(sys.argv[1]))"
    sdist = subprocess.run([sys.executable, "-c", hatch, wheels], cwd=source, capture_output=True, text=True, check=True).stdout.strip()
    for origin, to in ((wheels / sdist, wheels), (source, wheels / "tree")):
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(to), str(origin)]
        made = subprocess.run(build, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    return wheels


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel holds, and packages of others with the names of our folders, which raise as torchtune's does."""
    site = tmp_path_factory.mktemp("site packages")
    with zipfile.ZipFile(_wheel(built)) as archive:
        archive.extractall(site)
    _hide_in(site)
    return site


def _hide_in(folder: Path) -> None:
    """Packages with the names of our folders, which raise as `recipes` of torchtune does."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ModuleNotFoundError('{name} is not installed')\n")


def _wheel(folder: Path) -> Path:
    (wheel,) = folder.glob("overtone-*.whl")
    return wheel


def test_the_wheel_of_the_sdist_is_that_of_the_tree(built: Path) -> None:
    """An sdist can lose folders behind links in silence."""
    contents = []
    for wheel in (_wheel(built), _wheel(built / "tree")):
        with zipfile.ZipFile(wheel) as archive:
            contents.append({entry.filename: archive.read(entry) for entry in archive.infolist()})
    first, second = contents
    assert len(first) > 600 and first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_the_wheel_holds_every_file_of_the_packages(built: Path) -> None:
    mine = {path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()}
    own = {path.name for path in (ROOT / "overtone").iterdir() if path.is_file()}
    wanted = {f"overtone/{name}" for name in mine | own if "__pycache__" not in name}
    with zipfile.ZipFile(_wheel(built)) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert len(wanted) > 600 and held == wanted
    assert _wheel(built).stat().st_size < 3_000_000, "recordings and models are in the data package"


def test_the_demo_models_are_in_a_package_of_their_own(built: Path, tmp_path: Path) -> None:
    site, source = tmp_path / "site", tmp_path / "source"
    with zipfile.ZipFile(_wheel(built)) as archive:
        archive.extractall(site)
    find = "from overtone.finetune.storage.demo_models import data_folder; print(data_folder())"
    missing = subprocess.run([sys.executable, "-c", find], env=_environment(site), cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 1 and "pip install ./workshop/overtone_demo" in missing.stderr
    shutil.copytree(demo_models.IN_CLONE.parent, source)
    build = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=source, capture_output=True, check=True)
    with zipfile.ZipFile(*tmp_path.glob("overtone_demo-*.whl")) as archive:
        archive.extractall(site)
    found = subprocess.run([sys.executable, "-c", find], env=_environment(site), cwd=tmp_path, capture_output=True, text=True, check=True)
    wanted, copied = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        for folder in (demo_models.IN_CLONE, Path(found.stdout.strip()))
    )
    assert Path(found.stdout.strip()) == site / "overtone_demo" and len(wanted) > 60 and copied == wanted


def test_the_wheel_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    """Also where the working folder has folders of our names, and beside others' packages of these names."""
    work = tmp_path / "work"
    _hide_in(work)
    assert "check-dataset" in _run(installed, work, "overtone")
    assert "train" in _run(installed, work, "overtone.finetune", "--help")
    assert "voice" in _run(installed, work, "overtone.data_prep", "--help")
    assert "--options.sub_weight" in _run(installed, work, "overtone.finetune", "train", "--recipe", "voice_clone", "--help")
    assert _run(installed, work, "overtone.finetune", "where", "recipes").strip() == str(installed / "overtone/recipes")
    assert _run(installed, work, "overtone.finetune", "where", "cpu.yaml").strip() == str(installed / "overtone/configs/cpu.yaml")


@pytest.mark.ci
@pytest.mark.slow
def test_the_wheel_trains_the_debug_config_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    """A fresh virtual environment that has the dependencies and the wheel, and of the repository nothing. It and the working folder, which
    has folders of our names, have a space in their paths."""
    home, work = tmp_path / "my venv", tmp_path / "my work"
    _hide_in(work)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    dependencies = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages" / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")  # a path in a .pth file does not bring that folder's own .pth files
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, str(_wheel(built))], check=True)

    def run(*command: str) -> str:
        words = [str(home / "bin" / command[0]), *command[1:]]
        environment = {name: value for name, value in ALONE.items() if name != "PYTHONPATH"}
        done = subprocess.run(words, env=environment, cwd=work, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    recipes = run("overtone", "where", "recipes")
    assert recipes.startswith(str(home)) and run("finetune", "where", "cpu.yaml").startswith(str(home))
    run("python", "-m", "overtone.recipes.voice_clone.model.tiny_checkpoint", "runs/tiny/demo", "--size", "demo")
    for recipe in ("csm", "codec_lm"):
        source = load_yaml(Path(recipes, recipe, "debug.yaml").read_text(), recipe)["model"]["source"]
        assert "a model with random weights" in run("python", "-m", f"overtone.recipes.{recipe}.model.tiny_checkpoint", source)
    voice_rows(work, ["Ann"])
    options = ["--config", f"{recipes}/voice_clone/debug.yaml", "--data.train", "train.jsonl", "--train.steps", "2"]
    launcher = ["python", "-m", "accelerate.commands.launch", "--config_file", run("overtone", "where", "cpu.yaml"), "--num_processes", "1"]
    said = run(*launcher, "-m", "overtone.finetune.train", "--recipe", "voice_clone", *options)
    assert "finished at step 2" in said
    (export,) = re.findall(r"^next:\n  (.* export runs/debug .*)$", said, re.MULTILINE)
    assert shlex.split(export)[0] == str(home / "bin" / "overtone"), "the command on the PATH is that of another environment"
    assert "exports/debug is ready" in run("overtone", *shlex.split(export)[1:])
    assert (work / "runs" / "debug" / "checkpoints" / "step-00000002" / "manifest.json").is_file()


def test_the_wheel_installs_the_commands(installed: Path) -> None:
    (entry_points,) = installed.glob("overtone-*.dist-info/entry_points.txt")
    text = entry_points.read_text(encoding="utf-8")
    assert "overtone = overtone.__main__:console" in text
    assert "finetune = overtone.finetune.__main__:console" in text and "data_prep = overtone.data_prep.__main__:console" in text
    program = (
        "from overtone.finetune.__main__ import console as a; from overtone.data_prep.__main__ import console as b; "
        "print(callable(a), callable(b))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=_environment(installed), cwd="/", capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"], done.stderr


def _run(installed: Path, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, env=_environment(installed), cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(installed: Path) -> dict[str, str]:
    """The installed copy before everything else, the repository nowhere."""
    return {**os.environ, "PYTHONPATH": str(installed)}
