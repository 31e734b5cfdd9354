"""Tests of `overtone.recipes.llm_grpo.options`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import dump, resolve
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_options, load_recipe
from overtone.recipes.llm_grpo.options import Options


def test_the_recipe_has_these_options() -> None:
    folder = find_recipe("llm_grpo")
    assert load_options(folder) is Options is load_recipe(folder).Options


def test_the_upper_bound_has_the_default_of_the_objective() -> None:
    assert Options().upper_clip == 0.2 and Options(objective="dapo").upper_clip == 0.28
    assert Options(objective="dapo", clip_high=0.5).upper_clip == 0.5


def test_the_config_of_a_checkpoint_is_a_valid_config(tmp_path: Path) -> None:
    given = [("options.rewards.exact_match.weight", "2"), ("options.rewards.judge", "{url: 'http://127.0.0.1:8000/v1', model: m}")]
    config = resolve("llm_grpo", Options, [], given)
    (tmp_path / "config.yaml").write_text(dump(config))
    assert resolve("llm_grpo", Options, [tmp_path / "config.yaml"], []) == config


@pytest.mark.parametrize(
    "content",
    [
        "options:\n  rewards:\n    functions: evil.py\n",
        "options: {rewards: {functions: evil.py}}\n",
        "lora:\n  options:\n    rewards:\n      functions: evil.py\n",
    ],
)
def test_only_the_command_line_names_code(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(UserError, match=r"mine\.yaml:\d: options\.rewards\.functions names code, so a file cannot set it; give --options"):
        resolve("llm_grpo", Options, [tmp_path / "mine.yaml"], [])
    config = resolve("llm_grpo", Options, [], [("options.rewards.functions", "mine.py")])
    assert config.options.rewards.functions == Path("mine.py")
    assert resolve("llm_grpo", Options, [], [("options.rewards", "{functions: mine.py}")]) == config


def test_a_file_may_say_that_there_are_no_functions(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("options:\n  rewards:\n    functions: null\n    length: {weight: 1}\n")
    assert resolve("llm_grpo", Options, [tmp_path / "mine.yaml"], []).options.rewards.functions is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"objective": "ppo"}, r"options\.objective"),
        ({"group": "1"}, r"options\.group"),
        ({"clip_low": "1"}, r"options\.clip_low"),
        ({"kl_weight": "-1"}, r"options\.kl_weight"),
        ({"max_mismatch": "0"}, r"options\.max_mismatch"),
        ({"rewards.exact": "1"}, r"options\.rewards\.exact"),
        ({"rewards.judge.url": "file:///etc/passwd"}, r"options\.rewards\.judge\.url"),
        ({"rewards.on_failure": "ignore"}, r"options\.rewards\.on_failure"),
        ({"loss_head": "liger"}, "liger computes no log-probability of each token; use chunked"),
    ],
)
def test_invalid_values_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        resolve("llm_grpo", Options, [], [(f"options.{key}", value) for key, value in given.items()])
