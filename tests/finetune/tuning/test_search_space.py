"""Search spaces: what a file may say, the draws, and errors with file, line and the nearest word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import list_sources
from overtone.finetune.config_sources import read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.tuning import search_space
from overtone.finetune.tuning.search_space import Dimension, Draw, check_values, draw_trials, make_source, read_space
from tests.byte_model.recipe import Options
from tests.finetune import tiny

NAME = str(tiny.FOLDER)
FULL = """\
train:
  lr: {loguniform: [1e-6, 1e-2]}
  warmup: {uniform: [0, 0.1]}
  epochs: {randint: [1, 4]}
model.lora.rank: {choice: [8, 16]}
run.seed: {grid: [0, 1, 2]}
"""


def space_of(tmp_path: Path, text: str) -> tuple[Dimension, ...]:
    (tmp_path / "space.yaml").write_text(text)
    return read_space(tmp_path / "space.yaml", Options)


def checked(tmp_path: Path, text: str, *overrides: tuple[str, str]) -> None:
    check_values(space_of(tmp_path, text), NAME, Options, list_sources([read_config_file(tiny.FOLDER / "config.yaml")], overrides))


def test_sections_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    space = space_of(tmp_path, FULL)
    assert [(each.key, each.distribution, each.values) for each in space] == [
        ("train.lr", "loguniform", (1e-6, 1e-2)),
        ("train.warmup", "uniform", (0, 0.1)),
        ("train.epochs", "randint", (1, 4)),
        ("model.lora.rank", "choice", (8, 16)),
        ("run.seed", "grid", (0, 1, 2)),
    ]
    assert space[0].place == f"{tmp_path / 'space.yaml'}:2"
    checked(tmp_path, FULL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("train:", ":1: train has no value; expected one of choice"),
        ("train.lr: {logunifrom: [1e-6, 1e-4]}", ":1: train.lr: unknown distribution logunifrom; did you mean loguniform?"),
        (
            "train:\n  lr: 1e-4",
            ":2: train.lr = 0.0001 is no distribution; .*a fixed value is set by --train.lr 0.0001",
        ),
        ("train.lr: [1e-4]", r":1: train.lr = \[0.0001\] is no distribution; expected one of"),
        ("train.lr: {choice: 3}", ":1: train.lr: choice 3: not a list of values"),
        ("train.lr: {choice: [1e-4, 1e-4]}", "a value is listed twice"),
        ("train.lr: {uniform: [1, 2, 3]}", "not two numbers"),
        ("train.lr: {uniform: [2, 1]}", "the first number must be less than the second"),
        ("train.lr: {loguniform: [0, 1]}", "the ends of a logarithmic range must be above 0"),
        ("train.epochs: {randint: [1, 2.5]}", "not two whole numbers"),
        ("train.lr: {choice: [1], grid: [2]}", "is no distribution; expected one of"),
        ("train.lr: {grid: [1e-4]}\ntrain:\n  lr: {grid: [1e-5]}", ":3: train.lr is set twice, with dots and in its section; remove one"),
        ("run.dir: {choice: [a, b]}", ":1: run.dir cannot be tuned: each trial has a folder of its own"),
        ("recipe: {choice: [csm]}", ":1: recipe cannot be tuned"),
    ],
)
def test_what_is_no_space_is_refused_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        space_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.lrr: {uniform: [1e-5, 1e-4]}", ":1: unknown key train.lrr; did you mean train.lr?"),
        ("learning_rate: {uniform: [1e-5, 1e-4]}", ":1: unknown key learning_rate; did you mean train.lr?"),
        ("options.dropuot: {uniform: [0, 0.5]}", ":1: unknown key options.dropuot; did you mean options.dropout?"),
        ("train.epochs: {uniform: [1, 4]}", ":1: train.epochs = 1.0: "),
        ("train.schedule: {choice: [cosine, linear]}", ":1: train.schedule = 'linear': "),
        ("options.dropout: {uniform: [0.5, 1.0]}", ":1: options.dropout = 1.0: "),
        ("train.epochs: {randint: [0, 4]}", ":1: train.epochs = 0: "),
    ],
)
def test_values_that_a_key_does_not_accept_are_refused_with_their_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        checked(tmp_path, text)


def test_a_key_that_the_command_line_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"space.yaml:1: train.lr is also set by --train.lr; remove one of them"):
        checked(tmp_path, "train.lr: {uniform: [1e-5, 1e-4]}", ("train.lr", "1e-3"))


def test_draws_are_in_range_and_cover_it(tmp_path: Path) -> None:
    draws = draw_trials(space_of(tmp_path, FULL), 0, 200)
    assert len(draws) == 600 and [draw.number for draw in draws] == [*range(600)]
    rates = [draw.values["train.lr"] for draw in draws]
    assert 1e-6 <= min(rates) < 2e-6 and 5e-3 < max(rates) <= 1e-2
    assert 250 < sum(rate < 1e-4 for rate in rates) < 350, "half of a logarithmic range lies below its geometric mean"
    warmups = [draw.values["train.warmup"] for draw in draws]
    assert min(warmups) >= 0 and max(warmups) <= 0.1 and 250 < sum(warmup < 0.05 for warmup in warmups) < 350
    assert {draw.values["train.epochs"] for draw in draws} == {1, 2, 3}
    low = [draw.values["train.warmup"] < 0.05 for draw in draws if draw.values["train.lr"] < 1e-4]
    assert 0.4 < sum(low) / len(low) < 0.6, "the keys are independent"
    assert {draw.values["model.lora.rank"] for draw in draws} == {8, 16}
    assert [draw.values["run.seed"] for draw in draws[:4]] == [0, 1, 2, 0]


def test_more_draws_leave_the_earlier_ones_and_a_seed_changes_all(tmp_path: Path) -> None:
    space = space_of(tmp_path, FULL)
    assert draw_trials(space, 0, 4) == draw_trials(space, 0, 9)[:12]
    assert all(one.values != other.values for one, other in zip(draw_trials(space, 0, 4), draw_trials(space, 1, 4), strict=True))


def test_a_draw_does_not_depend_on_the_other_keys_or_the_process(tmp_path: Path) -> None:
    alone = space_of(tmp_path, "train.lr: {loguniform: [1e-6, 1e-2]}\nrun.seed: {grid: [0, 1, 2]}")
    both = space_of(tmp_path, FULL)
    assert [draw.values["train.lr"] for draw in draw_trials(alone, 0, 3)] == [draw.values["train.lr"] for draw in draw_trials(both, 0, 3)]
    code = (
        "from overtone.finetune.tuning.search_space import *; "
        "print(draw_value(Dimension('train.lr', 'loguniform', (1e-6, 1e-2), ''), 0, 5))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert float(printed) == draw_trials(both, 0, 3)[5].values["train.lr"]


def test_draws_that_repeat_settings_are_dropped(tmp_path: Path) -> None:
    draws = draw_trials(space_of(tmp_path, "model.lora.rank: {choice: [8, 16]}"), 0, 20)
    assert sorted(draw.values["model.lora.rank"] for draw in draws) == [8, 16]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"train.lr": 1e-5, "model.lora.rank": 8}, {"train": {"lr": 1e-5}, "model": {"lora": {"rank": 8}}}),
        ({"model.lora.rank": 8, "model.lora": True}, {"model": {"lora": {"rank": 8}}}),
        ({"model.lora": False}, {"model": {"lora": None}}),
    ],
)
def test_settings_become_a_config_source(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert make_source(values, ()).values == expected


def test_values_that_do_not_fit_together_name_the_trial(tmp_path: Path) -> None:
    space = space_of(tmp_path, "train.lr: {grid: [1e-5]}")
    with pytest.raises(UserError, match=r"^trial 7 \(train.lr -1\): [^:]*:\s+.*space.yaml:1: train.lr = -1"):
        search_space.resolve_draw(Draw(7, {"train.lr": -1}), space, NAME, Options, [])
