"""Tests of `overtone cp`: what is copied, and that a copy trains."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from overtone.finetune.cli import copy_recipe
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import built_in_recipes, find_recipe, load_inference, load_options, load_recipe
from overtone.recipes.speech.interface import SpeechRecipe
from tests.finetune.fork_server import ROOT, run_command
from tests.recipes.voice_clone.conftest import corpus, nano, rows_of

__all__ = ["corpus", "nano", "rows_of"]


@pytest.mark.parametrize("name", built_in_recipes())
def test_a_copied_recipe_is_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert copy_recipe.main([name, "my recipe"]) == 0
    assert "--recipe './my recipe' --run.dir 'runs/my recipe'" in capsys.readouterr().out
    copied = tmp_path / "my recipe"
    assert (copied / "config.yaml").read_bytes() == (ROOT / "recipes" / name / "config.yaml").read_bytes()
    modules = sorted(copied.rglob("*.py"))
    assert {"recipe.py", "options.py"} <= {path.relative_to(copied).as_posix() for path in modules}
    assert not (copied / "demo").exists()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith(f"recipes.{name}"), f"{module} imports the recipe, not its copy"
                if node.level:
                    place = [module.parent, *module.parents][node.level].joinpath(*(node.module or "").split("."))
                    found = [place.with_suffix(".py"), *(place / f"{alias.name}.py" for alias in node.names)]
                    assert any(map(Path.is_file, found)), f"{module}:{node.lineno}"
    original, copy = (load_inference(find_recipe(place)).help for place in (name, "./my recipe"))
    assert original.keys() == copy.keys()
    recipe = load_recipe(find_recipe("./my recipe"))
    assert recipe.Options is load_options(find_recipe("./my recipe")) and recipe.load.__module__.startswith("outside_recipe_")


def test_a_config_and_a_launch_file_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file, command in (
        ("voice_clone/config.yaml", "voice_clone.yaml", "--recipe voice_clone --config voice_clone.yaml"),
        ("llm_sft/debug.yaml", "debug.yaml", "--recipe llm_sft --config debug.yaml"),
        ("fsdp2.yaml", "fsdp2.yaml", "overtone train --launch fsdp2.yaml"),
        ("slurm.sh", "slurm.sh", "sbatch slurm.sh --recipe RECIPE"),
    ):
        assert copy_recipe.main([name]) == 0 and command in capsys.readouterr().out
        assert (tmp_path / file).stat().st_size > 100
    assert copy_recipe.main(["fsdp2.yaml", "some where/launch.yaml"]) == 0
    assert (tmp_path / "some where" / "launch.yaml").is_file() and "'some where/launch.yaml'" in capsys.readouterr().out


def test_a_copied_config_still_finds_its_schema(tmp_path: Path) -> None:
    source = tmp_path / "config.yaml"
    source.write_text("# yaml-language-server: $schema=config.schema.json\nrun:\n  dir: runs/a  # $schema=kept.json\n")
    text = copy_recipe.keep_schema(source)
    assert text == source.read_text().replace("$schema=config", f"$schema={tmp_path}/config")


@pytest.mark.parametrize(
    "name", ["voice", "voice_clone/recipe.py", "voice_clone/../llm_sft/config.yaml", "../pyproject.toml", "/etc/passwd", ""]
)
def test_an_unknown_name_lists_the_known_ones(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy_recipe.main([name]) == 2
    message = capsys.readouterr().err
    assert (
        f"unknown name {name!r}" in message
        and ", ".join([*built_in_recipes(), f"{built_in_recipes()[0]}/config.yaml"]) in message
        and "fsdp2.yaml" in message
    )


@pytest.mark.parametrize("name", ["voice_clone", "voice_clone/config.yaml"])
def test_nothing_is_replaced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("my work")
    assert copy_recipe.main([name, str(tmp_path / "mine")]) == 2
    assert "already exists" in capsys.readouterr().err and (tmp_path / "mine").read_text() == "my work"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_target_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for name in ("voice_clone", "fsdp2.yaml"):
        assert copy_recipe.main([name, str(tmp_path / "file" / "mine")]) == 2
        assert "is a file, not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["codec_lm", "csm", "voice_clone"])
def test_the_verbs_of_a_copied_speech_recipe_work(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "my voices" / "mine"
    assert copy_recipe.main([name, str(copied)]) == 0
    inference = load_inference(copied)
    with pytest.raises(SystemExit):
        inference.help["generate"]()
    assert "--speaker" in capsys.readouterr().out and inference.speech is not None
    speech = inference.speech()
    assert isinstance(speech, SpeechRecipe)
    with pytest.raises(UserError, match="no model there"):
        speech.inspect(tmp_path)


@pytest.mark.slow
def test_a_copied_recipe_trains_and_exports(nano: Path, corpus, rows_of, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    data = corpus(tmp_path / "data", rows_of({"Anna": "high.flac", "Bert": "low.flac"})).train
    env = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def finetune(*words: object) -> str:
        done = run_command("-m", "finetune", *words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    finetune("cp", "voice_clone", "mine")
    options = tmp_path / "mine" / "options.py"
    options.write_text(options.read_text() + "\nprint('the copy is used')\n")
    settings = ["--model.source", nano, "--train.steps", 2, "--train.precision", "fp32", "--log.trackers", "[]"]
    out = finetune("train", "--recipe", "./mine", "--run.dir", "runs/mine", "--data.train", data, *settings)
    assert "the copy is used" in out and "finished at step 2" in out and "--recipe ./mine" in out
    finetune("export", "runs/mine", "--to", "exports/mine", "--recipe", "./mine")
    listed = finetune("ls")
    assert "finished" in listed and "2/2" in listed and "exports/mine" in listed
