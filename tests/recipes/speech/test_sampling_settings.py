"""A request overrides the model's settings, which override the stock defaults; invalid settings are reported with their file."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import CONFIG, SamplingScheme, check_numbers, extend_sampling

SHAPES = ("temperature", "top_k", "top_p")
SCHEME = SamplingScheme(
    {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
    | {"small_do_sample": False, "small_temperature": 0.8, "small_top_k": 5},
    shaped_by={"do_sample": SHAPES, "small_do_sample": ("small_temperature", "small_top_k")},
    help={"temperature": "how bold", "small_top_k": "how many"},
)


@dataclass(frozen=True)
class Requested(SpeechSampling):
    small_top_k: int | None = None


def test_a_request_overrides_the_model_and_the_model_overrides_the_stock_package() -> None:
    assert SCHEME.resolve({}, SpeechSampling()) == SCHEME.stock
    own = {"temperature": 0.3, "do_sample": False, "top_k": 7}
    assert SCHEME.resolve(own, SpeechSampling()) == {**SCHEME.stock, **own}
    found = SCHEME.resolve(own, Requested(temperature=0.5))
    assert found == {**SCHEME.stock, **own, "temperature": 0.5, "do_sample": True}, "a temperature turns sampling on"
    found = SCHEME.resolve(own, Requested(small_top_k=3))
    assert found == {**SCHEME.stock, **own, "small_top_k": 3, "small_do_sample": True}


def test_options_are_those_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    SCHEME.add_options(parser)
    args = parser.parse_args(["--temperature", "0.5", "--small-top-k", "3"])
    assert vars(args) == {"temperature": 0.5, "small_top_k": 3}
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "how many (default: from the model's generation_config.json, else 5)" in " ".join(capsys.readouterr().out.split())


def test_numbers_out_of_range_are_refused() -> None:
    check_numbers({"temperature": 0.5, "small_top_k": 3, "batch": 1, "seed": 0, "max_seconds": 1.0})
    for name, value in (("small_top_k", -1), ("batch", 0), ("seed", -1), ("max_seconds", float("nan")), ("temperature", 0.0)):
        with pytest.raises(UserError, match=rf"--{name.replace('_', '-')} {value:g} is out of range"):
            check_numbers({name: value})
    with pytest.raises(UserError, match="--seed 'one' is out of range"):
        check_numbers({"seed": "one"})


def test_settings_are_read_from_the_model(tmp_path: Path) -> None:
    assert SCHEME.read_model_settings(tmp_path) == {}
    (tmp_path / CONFIG).write_text(json.dumps({"top_k": 5, "small_do_sample": False, "max_new_tokens": 9, "temperature": None}))
    assert SCHEME.read_model_settings(tmp_path) == {"top_k": 5, "small_do_sample": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("small_temperature", "warm"), ("top_k", -1), ("small_top_k", 2.5), ("top_p", 0), ("top_p", 1.5),
        ("repetition_penalty", 0), ("do_sample", "no"), ("small_do_sample", 1), ("temperature", float("nan")),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_reported_with_its_file(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({name: value}))
    with pytest.raises(UserError, match=rf"generation_config\.json: {name} .* is out of range; the stock package uses"):
        SCHEME.read_model_settings(tmp_path)


@pytest.mark.parametrize("content", ['{"top_k": ', "[1]", "null"])
def test_a_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(
        UserError, match=r"generation_config\.json (is not JSON|contains a \w+ instead of a JSON object).*; download the model again"
    ):
        SCHEME.read_model_settings(tmp_path)


def test_a_general_request_leaves_what_a_recipe_adds_to_the_model() -> None:
    full = extend_sampling(SpeechSampling(greedy=True, temperature=0.5, seed=3, max_seconds=7.0), Requested)
    assert full == Requested(greedy=True, temperature=0.5, seed=3, max_seconds=7.0) and full.small_top_k is None
    assert extend_sampling(SpeechSampling(), Requested) == Requested(), "the same defaults"
    own = Requested(small_top_k=4)
    assert extend_sampling(own, Requested) is own
