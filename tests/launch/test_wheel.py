"""What is installed from the wheel works without the repository: verbs, recipes with their data, launch files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from overtone.finetune.config_sources import load_yaml
from tests.launch.launching import ALONE, ROOT, voice_rows

SHIPPED = ("overtone", "finetune", "data_prep", "recipes", "configs", "pyproject.toml", "LICENSE", "README.md", ".gitignore")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel holds, built from a copy, since a build writes beside its sources."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    built = subprocess.run([*build, "--wheel-dir", str(wheels), str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("overtone-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_the_wheel_holds_every_file_of_the_packages(installed: Path) -> None:
    mine = {path.relative_to(ROOT) for name in ("finetune", "data_prep", "recipes") for path in (ROOT / name).rglob("*") if path.is_file()}
    wanted = {path for path in mine if "__pycache__" not in path.parts}
    assert len(wanted) >= 40
    assert [str(path) for path in sorted(wanted) if not (installed / "overtone" / path).is_file()] == []
    launch_files = {path.name for path in (installed / "overtone/configs").glob("*.yaml")}
    assert launch_files == {path.name for path in (ROOT / "configs").glob("*.yaml")} and len(launch_files) >= 5
    assert {path.name for path in installed.iterdir() if ".dist-info" not in path.name} == {"overtone"}


def test_the_wheel_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    assert "train" in _run(installed, tmp_path, "overtone.finetune", "--help")
    assert "voice" in _run(installed, tmp_path, "overtone.data_prep", "--help")
    assert "--options.sub_weight" in _run(installed, tmp_path, "overtone.finetune", "train", "--recipe", "voice_clone", "--help")
    assert _run(installed, tmp_path, "overtone.finetune", "where", "recipes").strip() == str(installed / "overtone/recipes")
    assert _run(installed, tmp_path, "overtone.finetune", "where", "cpu.yaml").strip() == str(installed / "overtone/configs/cpu.yaml")


@pytest.mark.ci
@pytest.mark.slow
def test_the_wheel_trains_the_debug_config_in_a_fresh_environment(installed: Path, tmp_path: Path) -> None:
    """A fresh virtual environment that has the dependencies and the wheel, and of the repository nothing."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    dependencies = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages" / "dependencies.pth"
    dependencies.write_text(sysconfig.get_path("purelib") + "\n")  # a path in a .pth file does not bring that folder's own .pth files
    (wheel,) = installed.parent.glob("wheels[0-9]*/overtone-*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, str(wheel)], check=True)

    def run(*command: str) -> str:
        words = [str(home / "bin" / command[0]), *command[1:]]
        environment = {name: value for name, value in ALONE.items() if name != "PYTHONPATH"}
        done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    recipes = run("finetune", "where", "recipes")
    assert recipes.startswith(str(home)) and run("finetune", "where", "cpu.yaml").startswith(str(home))
    run("python", "-m", "overtone.recipes.voice_clone.model.tiny_checkpoint", "runs/tiny/demo", "--size", "demo")
    for module, overlay in (("csm.model", "csm"), ("codec_lm", "codec_lm")):
        source = load_yaml(Path(recipes, overlay, "debug.yaml").read_text(), overlay)["model"]["source"]
        assert "a model with random weights" in run("python", "-m", f"overtone.recipes.{module}.tiny_checkpoint", source)
    voice_rows(tmp_path, ["Ann"])
    options = ["--config", f"{recipes}/voice_clone/debug.yaml", "--data.train", "train.jsonl", "--train.steps", "2"]
    launcher = ["python", "-m", "accelerate.commands.launch", "--config_file", run("finetune", "where", "cpu.yaml"), "--num_processes", "1"]
    said = run(*launcher, "-m", "overtone.finetune.train", "--recipe", "voice_clone", *options)
    assert "finished at step 2" in said
    assert (tmp_path / "runs" / "debug" / "checkpoints" / "step-00000002" / "manifest.json").is_file()


def test_the_wheel_installs_both_commands(installed: Path) -> None:
    (entry_points,) = installed.glob("overtone-*.dist-info/entry_points.txt")
    text = entry_points.read_text(encoding="utf-8")
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
