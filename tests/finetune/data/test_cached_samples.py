"""Samples are read by the number of their row, and one that is missing, damaged or of another index is refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overtone.finetune.data import cached_samples, index_building
from overtone.finetune.data.index_building import Measured
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from tests.finetune import tiny
from tests.finetune.data.test_index_building import measure, opened, text_of, with_bytes


def test_rows_are_read_by_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"text": "one"}\n\n   \n{"text": "Ærø"}\r\n{"text": "last, without a line end"}'.encode())
    found = opened(path, tmp_path / "cache")
    assert [text_of(found, row) for row in range(len(found))] == ["one", "Ærø", "last, without a line end"]
    assert found.lengths.tolist() == [3, 3, 24]
    assert [found.where(row) for row in range(3)] == [f"{path}:1", f"{path}:4", f"{path}:5"]
    assert found.digest == files.digest(path)


def test_two_files_of_one_name_do_not_share_an_index(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = opened(tiny.write_rows(tmp_path / "a" / "train.jsonl", ["abc"]), cache)
    second = opened(tiny.write_rows(tmp_path / "b" / "train.jsonl", ["defg"]), cache)
    assert text_of(first, 0) == "abc" and text_of(second, 0) == "defg"
    assert cached_samples.open_rows(tmp_path / "a" / "train.jsonl", cache).lengths.tolist() == [3]


def test_a_sample_that_changes_during_the_run_is_refused(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    found, cached = opened(path, cache), cached_samples.samples_path(cached_samples.index_path(path, cache))
    found.announce(range(2))
    with_bytes(lambda data: data.replace(b"defg", b"dEfg"))(cached)
    assert found.sample(0) == b"record of abc"
    with pytest.raises(UserError, match=rf"its cached sample was changed after it was written; delete {cached} and run the same command"):
        found.sample(1)
    os.truncate(cached, 3)
    with pytest.raises(UserError, match=rf"{cached} was truncated after it was written; delete {cached} and run the same command"):
        found.announce(range(2))


def test_a_checksum_covers_the_whole_file(tmp_path: Path) -> None:
    for size in (0, 1, cached_samples.HASHED_AT_ONCE, cached_samples.HASHED_AT_ONCE + 1, 10_000):
        raw = bytes(range(256)) * 40
        whole = hashlib.blake2b(raw[:size], digest_size=8).digest()
        assert cached_samples.compute_checksum(raw[:size]) == int.from_bytes(whole, "little", signed=True)


@pytest.mark.parametrize("number", [-5, 2**40, 2**62])
def test_sizes_and_places_of_a_made_up_index_are_refused(number: int, tmp_path: Path) -> None:
    found = opened(tiny.write_rows(tmp_path / "rows.jsonl", ["abc"]), tmp_path / "cache")
    for wrong in (6, 5):
        index = np.array(found.index)
        index[0, wrong] = number
        with pytest.raises(UserError, match=r"cannot be read|truncated|changed|not the one"):
            replace(found, index=index).sample(0)


def test_an_index_that_another_process_has_made_since_is_refused(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc"]), tmp_path / "cache"
    built = index_building.build_index(path, cache, "key", measure)
    assert index_building.build_index(path, cache, "key", measure) == built and len(cached_samples.open_rows(path, cache, built)) == 1
    index_building.build_index(path, cache, "another key", lambda row: Measured(1))
    with pytest.raises(UserError, match=r"another process, such as `overtone plan` .* has just indexed .*rows\.jsonl again"):
        cached_samples.open_rows(path, cache, built)


def test_an_index_that_is_gone_before_it_is_opened_is_named(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", ["abc"])
    index_building.build_index(path, tmp_path / "cache", "key", measure)
    cached_samples.index_path(path, tmp_path / "cache").unlink()
    with pytest.raises(UserError, match=r"rows\.jsonl or its index .*\.index cannot be read \(No such file .*on a disk that all"):
        cached_samples.open_rows(path, tmp_path / "cache")


def test_a_file_that_grows_or_is_replaced_during_the_run_is_read_as_it_was(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "def"])
    found = opened(path, tmp_path / "cache")
    with path.open("a") as file:
        file.write('{"text": "more"}\n')
    assert len(found) == 2 and text_of(found, 1) == "def"
    tiny.write_rows(tmp_path / "other.jsonl", ["xyz", "uvw"]).replace(path)
    assert text_of(found, 1) == "def", "its sample is in the cache"
    assert text_of(opened(path, tmp_path / "cache"), 1) == "uvw", "the next start finds the new one"


def test_descriptors_are_closed_with_their_rows(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", ["abc"])
    held = opened(path, tmp_path / "cache")
    samples = held.samples.path
    assert len(descriptors_of(samples)) == 2, "of the file and of its mapping"
    for _ in range(5):
        opened(path, tmp_path / "cache")
    assert len(descriptors_of(samples)) == 2
    del held
    assert descriptors_of(samples) == []


def descriptors_of(path: Path) -> list[str]:
    """This process's open descriptors of a file. Others come and go with what earlier tests left to the garbage collector."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found += [descriptor.name] if descriptor.readlink() == path else []
    return found
