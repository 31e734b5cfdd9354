"""Errors in a config name their place and the nearest valid key."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import Config, Names, Section, resolve
from overtone.finetune.config_errors import SYNONYMS
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.errors import UserError


class Options(Section):
    depth: int = 1
    """How deep."""
    names: Names = ()
    """Of what."""


class Required(Section):
    center: float
    """The value that is subtracted."""


def test_a_missing_option_without_a_default_says_how_to_give_it() -> None:
    with pytest.raises(UserError, match="options.center has no default; give it with --options.center VALUE"):
        resolve("tests", Required, (), ())


def written(tmp_path: Path, text: str, name: str = "extra.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(*overrides: tuple[str, str], files: tuple[Path, ...] = ()) -> str:
    with pytest.raises(UserError) as caught:
        resolve("tests", Options, files, overrides)
    return str(caught.value)


def test_every_problem_at_once_with_place_and_nearest_key(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "train:\n  lrr: 1\n  micro_tokens: many\nmodel:\n  lora:\n    rnk: 3\noptions:\n  dept: 1\nmicro_tokens: 3\nqqq: 1\n",
    )
    printed = problems(("checkpoint.kep", "3"), ("checkpoint.every", "0"), ("train.lr", "yes"), files=(path,))
    for line in (
        f"{path}:2: unknown key train.lrr; did you mean train.lr?",
        f"{path}:3: train.micro_tokens = 'many': Input should be a valid integer",
        f"{path}:6: unknown key model.lora.rnk; did you mean model.lora.rank?",
        f"{path}:8: unknown key options.dept; did you mean options.depth?",
        f"{path}:9: unknown key micro_tokens; did you mean train.micro_tokens?",
        f"{path}:10: unknown key qqq; sections are recipe, run, model",
        "--checkpoint.kep: unknown key checkpoint.kep; did you mean checkpoint.keep?",
        "--checkpoint.every: checkpoint.every = 0: Value error, expected a whole number from 1 on, or auto",
        "--train.lr: train.lr = 'yes': Input should be a valid number",
    ):
        assert line in printed
    assert len(printed.splitlines()) == 10


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("train.learning_rate", "train.lr"),
        ("model.lora.r", "model.lora.rank"),
        ("model.lora.target_modules", "model.lora.targets"),
        ("lora", "model.lora"),
        ("use_peft", "model.lora"),
        ("learning_rate", "train.lr"),
        ("train.num_train_epochs", "train.epochs"),
        ("per_device_train_batch_size", "train.micro_tokens"),
        ("model.lora_alpha", "model.lora.alpha"),
        ("output_dir", "run.dir"),
    ],
)
def test_a_name_of_another_trainer_leads_to_the_key_here(key: str, near: str) -> None:
    assert f"--{key}: unknown key {key}; did you mean {near}?" in problems((key, "1"))


def test_every_name_of_another_trainer_leads_to_a_key_that_exists() -> None:
    known = {key for key, *_ in fields(Config)} | {"options.speaker", "model.lora"}
    assert len(SYNONYMS) >= 40 and {*SYNONYMS.values()} <= known


def test_the_reported_place_is_that_of_the_deciding_source(tmp_path: Path) -> None:
    good = written(tmp_path, "train:\n  clip: 1\n", "good.yaml")
    bad = written(tmp_path, "\n\ntrain:\n  clip: -1\n", "bad.yaml")
    assert f"{bad}:4: train.clip = -1" in problems(files=(good, bad))
    assert "--train.clip: train.clip = -2" in problems(("train.clip", "-2"), files=(good,))
    assert "--train.clip.deeper: train.clip = " in problems(("train.clip.deeper", "2"))
    assert "--train: train = 5: " in problems(("train", "5"), files=(good,))


@pytest.mark.parametrize(("key", "meant"), [("model", "model.source"), ("data", "data.train"), ("run", "run.dir")])
def test_a_value_in_place_of_a_section_names_the_key_that_is_meant(key: str, meant: str) -> None:
    assert f"--{key}: {key} is a section; did you mean {meant}: x?" in problems((key, "x"))
