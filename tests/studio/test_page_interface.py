"""What all pages use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.jobs.job_records import JobCommand
from overtone.studio.page_interface import (
    JINJA,
    find_free_name,
    find_target,
    flatten_options,
    format_age,
    is_short,
    name_dataset,
    read_options,
    require_name,
)
from tests.data_prep.conftest import MARKUP


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "now"), (61, "1 min ago"), (7300, "2 h ago"), (86400, "1 day ago"), (10**6, "11 days ago")]
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(time.time() - seconds) == text


@pytest.mark.parametrize("name", ["", "..", ".a", "a/b", "a b", "-a", "a" * 81, "ä", "a\n"])
def test_names_of_new_folders_are_plain(name: str) -> None:
    assert require_name("name", "my_voice-2.1") == "my_voice-2.1"
    with pytest.raises(UserError, match="is no name"):
        require_name("name", name)


@pytest.mark.parametrize(
    ("words", "target"),
    [(["data", "--out", "x"], "x"), (["--recipe", "a", "--run.dir", "runs/a"], "runs/a"), (["runs/a"], "runs/a"), (["--model", "b"], "")],
)
def test_a_job_is_named_by_what_it_writes(words: list[str], target: str) -> None:
    assert find_target(JobCommand(verb="train", words=words)) == target


def test_options_are_read_from_words() -> None:
    words = ["rec", "--raw", "--out", "data/a", "--as=-- Anna", "--val-share", "-1", "--join-turns"]
    assert read_options(words) == {"--raw": "", "--out": "data/a", "--as": "-- Anna", "--val-share": "-1", "--join-turns": ""}
    assert read_options([]) == {}


def test_a_dataset_is_replaced_only_by_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    assert name_dataset(tmp_path, "b", "") == "data/b" and name_dataset(tmp_path, "a", "data/a") == "data/a"
    for again in ("", "data/b"):
        with pytest.raises(UserError, match="data/a exists already"):
            name_dataset(tmp_path, "a", again)


def test_a_new_name_is_free(tmp_path: Path) -> None:
    assert find_free_name(tmp_path, MARKUP) == "img-src-x-onerror-alert-1"
    (tmp_path / "a").mkdir()
    (tmp_path / "b-2.wav").touch()
    (tmp_path / "b").symlink_to("none")
    assert find_free_name(tmp_path, "a") == "a-2" and find_free_name(tmp_path, "ä") == "new"
    assert find_free_name(tmp_path, "b", ".wav") == "b-3"


@pytest.mark.parametrize(("name", "is_so"), [("Zoë", True), ("caf\udce9", False)])
def test_names_that_are_not_utf8(name: str, is_so: bool) -> None:
    assert JINJA.tests["utf8"](name) == is_so


def test_options_without_a_value_are_left_out() -> None:
    assert flatten_options([("a", 1), ("b", None), ("c", ""), ("d.e", "x y")]) == ["--a", "1", "--d.e", "x y"]
    assert flatten_options([("as", "-- Anna"), ("b", -1)]) == ["--as=-- Anna", "--b=-1"]
    assert is_short("a" * 500) and not is_short("a" * 501) and not is_short("\0")
