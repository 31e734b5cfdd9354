"""YAML by strict rules, each key with its line; and the arguments of a command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.finetune.config_diff import flatten
from overtone.finetune.config_sources import format_settings, merge, parse_arguments, parse_settings, read_config_file
from overtone.finetune.errors import UserError


def written(tmp_path: Path, text: str, name: str = "extra.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"--config {tmp_path / 'none.yaml'}: no such file")):
        read_config_file(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="not readable as YAML"):
        read_config_file(tmp_path / "binary.yaml")


def test_each_key_remembers_its_line(tmp_path: Path) -> None:
    layer = read_config_file(written(tmp_path, "run:\n  seed: 1\n\ntrain: {lr: 2}\n"))
    assert layer.values == {"run": {"seed": 1}, "train": {"lr": 2}}
    lines = {key: place.rpartition(":")[2] for key, place in layer.origins.items()}
    assert lines == {"run": "1", "run.seed": "2", "train": "4", "train.lr": "4"}


def test_later_sources_override_earlier_ones_key_by_key() -> None:
    values = {"a": {"b": 1, "c": 2}, "d": 3}
    merge(values, {"a": {"c": 4}, "d": {"e": 5}})
    assert values == {"a": {"b": 1, "c": 4}, "d": {"e": 5}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1E5", 1e5), ("-1.5e+3", -1500.0), (".5", 0.5), ("5.", 5.0), ("12", 12), ("-3", -3), ("010", 10), ("089", 89),
        ("1_000", 1000), ("true", True), ("False", False), ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"),
        ("null", None), ("~", None), ("", None), ("2024-01-01", "2024-01-01"), ("12:30:00", "12:30:00"), ("1.2.3", "1.2.3"),
        ("'1e-5'", "1e-5"), ("0x10", "0x10"), ("e5", "e5"), ("[1, 1e2, no]", [1, 100.0, "no"]),
    ],
)  # fmt: skip
def test_scalars_are_read_by_the_rules_of_yaml_1_2(tmp_path: Path, text: str, value: Any) -> None:
    read = read_config_file(written(tmp_path, f"key: {text}")).values["key"]
    assert read == value and type(read) is type(value)


def test_the_command_line_is_split() -> None:
    arguments = parse_arguments(["--recipe", "a", "--config", "x.yaml", "--train.lr", "-1", "--config=y.yaml", "--run.dir=a=b", "-h"])
    assert (arguments.recipe, arguments.files, arguments.help) == ("a", [Path("x.yaml"), Path("y.yaml")], True)
    assert arguments.overrides == [("train.lr", "-1"), ("run.dir", "a=b")]
    for argv, message in (
        (["stray"], "unexpected argument 'stray'"),
        (["--train.lr"], "--train.lr needs a value"),
        (["--train.lr", "--run.seed", "1"], "--train.lr needs a value"),
        (["--cofig", "x.yaml"], "unknown flag --cofig; did you mean --config?"),
        (["--num-worker=8"], "unknown flag --num-worker; did you mean --num-workers?"),
        (["--setings", "--recipe", "a"], "unknown flag --setings; did you mean --settings?"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            parse_arguments(argv, ("num-workers", "settings"))
    assert parse_arguments(["--num-workers", "8"], ("num-workers",)).overrides == [("num-workers", "8")]
    assert parse_arguments(["--run", "{seed: 1}", "--train.config", "1"]).overrides == [("run", "{seed: 1}"), ("train.config", "1")]


def test_settings_of_a_program_become_plain_values_with_their_places() -> None:
    given = {"train.lr": np.float64(0.5), "data.train": Path("a/b"), "model": {"lora": {"rank": np.int64(3)}}, "log.trackers": ("x", True)}
    sources = parse_settings(given)
    assert [source.values for source in sources] == [
        *({"train": {"lr": 0.5}}, {"data": {"train": "a/b"}}, {"model": {"lora": {"rank": 3}}}, {"log": {"trackers": ["x", True]}})
    ]
    assert type(sources[0].values["train"]["lr"]) is float and type(sources[2].values["model"]["lora"]["rank"]) is int
    place = "settings['model']"
    assert sources[2].origins == {"model": place, "model.lora": place, "model.lora.rank": place}
    assert format_settings(given | {"run.dir": "1e5", "train.steps": None}) == [
        ("train.lr", "0.5"),
        ("data.train", "a/b"),
        ("model", "{lora: {rank: 3}}"),
        ("log.trackers", "[x, true]"),
        ("run.dir", "'1e5'"),
        ("train.steps", "null"),
    ]


@pytest.mark.parametrize("value", [Path, {1, 2}, b"bytes", {1: 2}, 2**63, "a\0b", "\ud800", [["x", len]], np.ones(2), 1j])
def test_a_setting_that_no_file_could_hold_is_refused(value: object) -> None:
    with pytest.raises(UserError, match=r"^settings\['train\.lr'\] = .* is not a valid config value; give a text, a path, a number"):
        parse_settings({"train.lr": value})


def test_settings_that_never_end_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    for settings in ({"train.lr": endless}, {".".join("a" * 200): 1}, {3: 1}):
        with pytest.raises(UserError, match=r"^settings\["):
            parse_settings(settings)  # type: ignore[arg-type]


def test_sections_become_dotted_keys() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}
