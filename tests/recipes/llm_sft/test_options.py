"""Tests of `overtone.recipes.llm_sft.options`, which are read without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_options, load_recipe
from overtone.recipes.llm_sft.options import Options

ROOT = Path(__file__).parents[3]


def test_the_recipe_has_these_options() -> None:
    folder = find_recipe("llm_sft")
    assert load_options(folder) is Options is load_recipe(folder).Options


@pytest.mark.parametrize(
    ("key", "value"), [("supervise", "user"), ("attention", "fast"), ("loss_head", "full"), ("chat_template", "3"), ("packing", "true")]
)
def test_unknown_options_and_values_are_refused(key: str, value: str) -> None:
    with pytest.raises(UserError, match=f"options.{key}"):
        resolve("llm_sft", Options, [], [(f"options.{key}", value)])


def test_a_config_is_resolved_without_torch() -> None:
    script = (
        "import sys; from overtone.finetune.cli import plan; from overtone.finetune.train import main;"
        "codes = [main(['--recipe', 'llm_sft', '--help']), main(['--recipe', 'llm_sft']),"
        "plan.main(['--settings', '--recipe', 'llm_sft', '--data.train', 'pyproject.toml'])];"
        "print('torch' in sys.modules, codes)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "False [0, 2, 0]", done.stderr
