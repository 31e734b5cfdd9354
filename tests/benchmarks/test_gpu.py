"""What the benchmarks of a GPU would do on one of 80 GB: their memory by the plan, and the choice of parts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import _gpu, _gpu_beside, _gpu_steps, gpu, gpu_beside
from benchmarks._gpu_steps import GIB, Version, chat_versions, voice_versions
from finetune.config import Config
from finetune.foresight import foresee, some_rows
from finetune.recipe import Recipe, find_recipe, load_recipe
from recipes.llm_sft import tiny as tiny_chat
from recipes.voice_clone import tiny as tiny_voice
from tests.launch.launching import ALONE, ROOT

ROOM = 76 * GIB
"""Of an H100 of 80 GB (79.1 GiB), with some left for the context and for what the allocator cannot use."""
VERSIONS = [("chat", version) for version in chat_versions()] + [("voice", version) for version in voice_versions()]
LARGEST = {("chat", "even: one sample a row"), ("voice", "nothing recomputed")}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the benchmarks make them, in shape only."""
    folder = tmp_path_factory.mktemp("bases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_chat, "weights", lambda *_, **__: b"")
        patch.setattr(tiny_voice, "model_weights", lambda *_, **__: b"")
        _gpu.make_bases(folder, _gpu.FULL)
    for kind in ("chat", "voice"):
        (folder / kind / "base" / "model.safetensors").unlink()
    return folder


def recipe_of(kind: str) -> Recipe:
    return load_recipe(find_recipe(_gpu_steps.RECIPES[kind]))


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param(kind, version, id=f"{kind}, {version.name}", marks=[] if (kind, version.name) in LARGEST else [pytest.mark.slow])
        for kind, version in VERSIONS
    ],
)
def test_every_version_fits_an_h100(kind: str, version: Version, bases: Path) -> None:
    keys = {key: value for key, value in version.keys.items() if value != "liger"}  # it needs a GPU to be built, and holds less than ours
    recipe = recipe_of(kind)
    with _gpu_steps.levers(version):
        plan = _gpu_steps.planned(_gpu_steps.config_of(kind, replace(version, keys=keys), bases, _gpu.FULL, recipe), recipe)
    assert 20 * GIB < plan < ROOM, f"{plan / GIB:.1f} GiB"


def test_both_models_of_a_comparison_fit_an_h100(bases: Path) -> None:
    """The larger of its micro-batches, which is 32 clips padded to the longest, beside the weights and states of the other model."""
    recipe = recipe_of("voice")
    positions = _gpu.FULL.clips * longest_clip(_gpu_beside.ways_config(bases), recipe)
    for config in (_gpu_beside.ways_config(bases), _gpu_beside.overhead_config(bases)):
        train = config.train.model_copy(update={"micro_tokens": max(positions, 4096)})
        whole = config.model_copy(update={"train": train})
        plan, other = _gpu_steps.planned(whole, recipe), 16 * foresee(whole, recipe).outline.total
        assert other > 5 * GIB and plan + other < ROOM, f"{plan / GIB:.1f} and {other / GIB:.1f} GiB at {positions} positions"


def longest_clip(config: Config, recipe: Recipe) -> int:
    """Positions."""
    processor = foresee(config, recipe).processor()
    assert config.data.train is not None
    return max(recipe.length(recipe.read(row, processor)) for _, row in some_rows(Path(str(config.data.train))))


def test_the_run_that_is_saved_fits_an_h100(bases: Path) -> None:
    assert _gpu_steps.planned(_gpu_beside.chat_config(bases, _gpu.FULL), recipe_of("chat")) < ROOM


def test_a_part_is_run_after_what_it_needs() -> None:
    assert [part.name for part in _gpu.chosen(gpu.REPORT, "voice")] == ["bases", "ceiling", "voice"]
    assert [part.name for part in _gpu.chosen(gpu_beside.REPORT, "speech")] == ["bases", "speech"]
    assert _gpu.chosen(gpu.REPORT, None) == gpu.REPORT.parts


@pytest.mark.parametrize(("flags", "problem"), [(["--part", "chat"], "needs --to FOLDER"), (["--part", "chess"], "invalid choice")])
def test_a_choice_that_cannot_be(flags: list[str], problem: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "gpu.py", *flags], env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and problem in done.stderr


@pytest.mark.slow
def test_a_chosen_part_is_all_that_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "gpu_beside.py", "--quick", "--part", "speech", "--to", tmp_path]
    subprocess.run(command, env=ALONE, capture_output=True, check=True)
    table = (tmp_path / "gpu_beside.md").read_text(encoding="utf-8")
    assert table.startswith("`.venv/bin/python benchmarks/gpu_beside.py --quick --part speech`")
    assert "frames of codes" in table and "a save" not in table and "Not measured" not in table
