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


def test_the_config_of_a_run_needs_the_judge_on_the_command_line_again(tmp_path: Path) -> None:
    judge = [("options.rewards.judge", "{url: 'http://127.0.0.1:8000/v1', model: m, key_variable: A_KEY}")]
    config = resolve("llm_grpo", Options, [], [("options.rewards.exact_match.weight", "2"), *judge])
    (tmp_path / "config.yaml").write_text(dump(config))
    for given, key in (([], "url"), ([("options.rewards.judge.url", "http://127.0.0.1:8000/v1")], "key_variable")):
        with pytest.raises(
            UserError, match=rf"config\.yaml:\d+: options\.rewards\.judge\.{key} names a .*, so a file cannot set it; give --opt"
        ):
            resolve("llm_grpo", Options, [tmp_path / "config.yaml"], given)
    assert resolve("llm_grpo", Options, [tmp_path / "config.yaml"], judge) == config


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
        *(
            ({"rewards.judge.model": "m", "rewards.judge.url": url}, rf"options\.rewards\.judge\.url.*expected {problem}")
            for url, problem in (
                ("file:///etc/passwd", "a web address"),
                ("http://[::1/v1", "a web address"),
                ("http://host:99999/v1", "a web address"),
                ("http:///v1", "a web address"),
                ("'http://a host/v1'", "a web address"),
                ("http://me:word@host/v1", "an address without a user"),
                ("http://host/v1?key=word", "an address without a user"),
            )
        ),
        *(({"rewards.regular_expression.pattern": each}, "not a regular expression that can be used") for each in ("'('", "(" * 9000)),
        ({"dynamic_sampling": "-1"}, r"options\.dynamic_sampling"),
        ({"rewards.overlong.tokens": "0"}, r"options\.rewards\.overlong\.tokens"),
        ({"rewards.overlong.tokens": "9", "max_new_tokens": "8"}, r"overlong\.tokens: 9 is more than max_new_tokens: 8; lower it"),
        ({"rewards.on_failure": "ignore"}, r"options\.rewards\.on_failure"),
        ({"loss_head": "liger"}, "liger computes no log-probability of each token; use chunked"),
    ],
)
def test_invalid_values_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        resolve("llm_grpo", Options, [], [(f"options.{key}", value) for key, value in given.items()])
