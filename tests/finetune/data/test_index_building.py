"""An index is reused only for the rows that it was made of; invalid rows are listed, and damaged or unfinished files are made again."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.finetune.data import cached_samples, index_building
from overtone.finetune.data.cached_samples import Rows
from overtone.finetune.data.index_building import Measured
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from tests.finetune import tiny


def measure(row: dict[str, Any]) -> Measured:
    if not isinstance(row.get("text"), str):
        raise UserError("no text in it")
    return Measured(len(row["text"]), sample=f"record of {row['text']}".encode())


def opened(path: Path, cache: Path, key: str = "key") -> Rows:
    index_building.build_index(path, cache, key, measure)
    return cached_samples.open_rows(path, cache)


def text_of(rows: Rows, row: int) -> str:
    return rows.sample(row).decode().removeprefix("record of ")


def test_cached_rows_are_not_readable_by_other_users(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(0o755)
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}')
    opened(tmp_path / "rows.jsonl", tmp_path / "cache")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_cache_whose_permissions_stay_is_reported_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / "cache").mkdir(0o755)
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}')
    monkeypatch.setattr(files.os, "chmod", refuse)
    assert len(opened(tmp_path / "rows.jsonl", tmp_path / "cache")) == 1
    assert f"warning: other users can read {tmp_path / 'cache'}" in capsys.readouterr().err


def test_bad_rows_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine"}\n{"text": 3}\n\nnot json\n[1]\n"text"\n')
    with pytest.raises(UserError) as caught:
        opened(path, tmp_path / "cache")
    first, *others = str(caught.value).splitlines()
    endings = (
        "2: no text in it",
        "4: not a line of JSON (Expecting value at column 1)",
        "5: expected an object in braces, found list",
        "6: expected an object in braces",
    )
    assert first == "4 invalid rows:" and len(others) == 4
    assert all(line.startswith(f"  {path}:{words}") for line, words in zip(others, endings, strict=True))
    assert [place.name for place in (tmp_path / "cache").iterdir()] == [index_building.LOCK]


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" * 25)
    with pytest.raises(UserError, match=r"^\S+rows\.jsonl: all 25 rows: no text in it$"):
        opened(path, tmp_path / "cache")
    path.write_text("{}\n" * 25 + '{"text": "fine"}\n')
    with pytest.raises(UserError, match=r"^25 invalid rows:\n  \S+rows\.jsonl:1: no text in it \(25 rows: lines 1, 2, .*, 10, …\)$"):
        opened(path, tmp_path / "cache")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"rows\.jsonl: no rows; there is nothing to train on"):
        opened(tmp_path / "rows.jsonl", tmp_path / "cache")


def test_a_file_that_is_missing_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl: no such file; give data\.train"):
        opened(tmp_path / "rows.jsonl", tmp_path / "cache")


def test_an_index_is_reused_until_file_or_key_change(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    measured: list[str] = []

    def build(key: str) -> list[int]:
        measured.clear()
        index_building.build_index(path, cache, key, lambda row: measured.append(row["text"]) or measure(row))  # type: ignore[func-returns-value]  # append, then measure
        return cached_samples.open_rows(path, cache).lengths.tolist()

    assert build("a") == [3, 4] and len(measured) == 2
    assert build("a") == [3, 4] and measured == []
    assert build("b") == [3, 4] and len(measured) == 2
    before = path.stat()
    tiny.write_rows(path, ["abcd", "efg"])
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert build("b") == [4, 3] and len(measured) == 2, "the same size and time, other content"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert build("b") == [4, 3] and measured == [], "the same content, another time"
    tiny.write_rows(path, ["abcd", "efg", "hij"])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert build("b") == [4, 3, 3], "the same time, another size"


def test_a_file_too_large_to_digest_counts_as_the_same_while_its_times_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    monkeypatch.setattr(index_building, "DIGESTED_BYTES", 10)
    digested: list[Path] = []
    whole = files.digest
    monkeypatch.setattr(index_building.files, "digest", lambda path: digested.append(path) or whole(path))
    opened(path, cache)
    opened(path, cache)
    assert digested == []
    before = path.stat()
    tiny.write_rows(path, ["abcd", "efg"])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert opened(path, cache).lengths.tolist() == [4, 3] and digested == [path], "its change time gave it away"


def of_an_older_format(place: Path) -> None:
    """As it was before: four columns, no checksums."""
    head, begins = cached_samples.read_head(place)
    numbers = np.frombuffer(place.read_bytes()[begins:], np.int64).reshape(-1, cached_samples.COLUMNS)[:, :4]
    old = json.dumps({key: value for key, value in head.items() if key not in ("format", "changed_ns", "index_digest")})
    place.write_bytes(f"{old}{' ' * (-(len(old) + 1) % 8)}\n".encode() + numbers.tobytes())


def with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        place.write_bytes(change(place.read_bytes()))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (with_bytes(lambda _: b""), "cannot be read (Expecting value"),
    "cut in its numbers": (with_bytes(lambda data: data[:-20]), "does not match its digest"),
    "cut in its head": (with_bytes(lambda data: data[:40]), "cannot be read ("),
    "garbage": (with_bytes(lambda data: bytes(range(256)) * 4), "cannot be read ("),
    "zeros": (with_bytes(lambda data: bytes(len(data))), "cannot be read ("),
    "brackets": (with_bytes(lambda data: b"[" * 100_000), "cannot be read (nested more than 100 deep)"),
    "a list": (with_bytes(lambda data: b"[]\n"), "cannot be read (its first line is not a JSON object)"),
    "no keys": (with_bytes(lambda data: b'{"format": %d}\n' % index_building.FORMAT), "cannot be read ('index_digest')"),
    "a number changed": (with_bytes(lambda data: data[:-33] + bytes([data[-33] ^ 1]) + data[-32:]), "does not match its digest"),
    "its head changed": (with_bytes(lambda data: data.replace(b'"cut": 0', b'"cut": 1')), "does not match its digest"),
    "another format": (of_an_older_format, "has the format of another program version"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_index_is_made_again_and_that_is_reported(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    opened(path, cache)
    place = cached_samples.index_path(path, cache)
    sound = place.read_bytes()
    assert capsys.readouterr().err == ""
    damage, reason = DAMAGES[name]
    damage(place)
    assert place.read_bytes() != sound
    found = opened(path, cache)
    assert [text_of(found, row) for row in (0, 1)] == ["abc", "defg"] and found.lengths.tolist() == [3, 4] and found.cut == 0
    assert place.read_bytes() == sound
    printed = capsys.readouterr().err
    assert printed.startswith(f"indexing {path} again: its index ") and reason in printed and printed.count("\n") == 1


def test_a_made_up_index_that_lacks_a_key_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    opened(path, cache)
    place = cached_samples.index_path(path, cache)
    head, begins = cached_samples.read_head(place)
    del head["key"], head["index_digest"]
    numbers = place.read_bytes()[begins:]
    line = json.dumps({**head, "index_digest": index_building._digest_of_index(head, [numbers])}).encode()
    place.write_bytes(line + b" " * (-(len(line) + 1) % 8) + b"\n" + numbers)
    assert opened(path, cache).lengths.tolist() == [3, 4]
    assert "again: the recipe, its options" in capsys.readouterr().err


CACHE_DAMAGES: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "cut": with_bytes(lambda data: data[:-1]),
    "longer": with_bytes(lambda data: data + b"x"),
    "a byte changed": with_bytes(lambda data: data[:-1] + bytes([data[-1] ^ 1])),
}


@pytest.mark.parametrize("name", CACHE_DAMAGES)
def test_damaged_samples_are_made_again_and_that_is_reported(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    opened(path, cache)
    cached = cached_samples.samples_path(cached_samples.index_path(path, cache))
    assert cached.read_bytes() == b"record of abcrecord of defg"
    CACHE_DAMAGES[name](cached)
    found = opened(path, cache)
    assert [bytes(found.sample(row)) for row in (0, 1)] == [b"record of abc", b"record of defg"]
    assert capsys.readouterr().err == f"indexing {path} again: its cached samples {cached} are missing or damaged\n"


def test_a_line_without_an_end_is_refused_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 4 + b'{"text": "' + b"b" * 300)
    monkeypatch.setattr(index_building, "SCANNED_BYTES", 20)
    monkeypatch.setattr(input_files, "LONGEST_LINE", 100)
    with pytest.raises(UserError, match=r"rows\.jsonl:5: the line has more than 100 bytes"):
        opened(path, tmp_path / "cache")


def test_indexing_by_blocks_equals_indexing_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    ends = [b"\n", b"\r\n", b"\n\n"]
    path.write_bytes(b"".join(b'{"text": "%s"}%s' % (text.encode(), ends[row % 3]) for row, text in enumerate(tiny.texts(40))))
    whole = [opened(path, tmp_path / "whole"), cached_samples.index_path(path, tmp_path / "whole").read_bytes()]
    monkeypatch.setattr(index_building, "SCANNED_BYTES", 50)
    parts = [opened(path, tmp_path / "parts"), cached_samples.index_path(path, tmp_path / "parts").read_bytes()]
    assert len([*index_building.blocks_of(path.open("rb"), path)]) > 10 and parts[1] == whole[1]
    assert [parts[0].sample(row) for row in range(40)] == [whole[0].sample(row) for row in range(40)]
    assert [text_of(parts[0], row) for row in range(40)] == tiny.texts(40)


def test_a_disk_without_room_is_named_once_the_first_rows_show_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", tiny.texts(40))
    monkeypatch.setattr(index_building, "SCANNED_BYTES", 100)
    monkeypatch.setattr(files, "free_bytes", lambda _: 3000)
    with pytest.raises(UserError, match=r"the cache of the samples of .*rows\.jsonl needs 3,\d\d\d bytes at .*cache, and 3,000 are free"):
        opened(path, tmp_path / "cache")
    assert [place.name for place in (tmp_path / "cache").iterdir()] == [index_building.LOCK]


def test_a_long_indexing_pass_reports_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", tiny.texts(40))
    monkeypatch.setattr(index_building, "SCANNED_BYTES", path.stat().st_size // 4)
    monkeypatch.setattr(index_building, "SECONDS_BETWEEN_REPORTS", -1.0)
    opened(path, tmp_path / "cache")
    shares = [int(line.split(": ")[1].split(" %")[0].split("%")[0]) for line in capsys.readouterr().err.splitlines()]
    assert len(shares) == 4 and 20 < shares[0] < 40 and shares == sorted(shares) and shares[-1] == 100


def test_files_of_a_killed_process_are_deleted_and_never_used(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    pid = os.fork()
    if not pid:  # killed when all samples are written and none is adopted
        with files.watch(lambda operation, place: operation == "rename" and os.kill(os.getpid(), signal.SIGKILL)):
            index_building.build_index(path, cache, "key", measure)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert [files.TEMPORARY in place.name for place in cache.iterdir() if place.name != index_building.LOCK] == [True]
    found = opened(path, cache)
    assert found.sample(1) == b"record of defg"
    place = cached_samples.index_path(path, cache)
    assert sorted(cache.iterdir()) == sorted([cache / index_building.LOCK, place, cached_samples.samples_path(place)])
    place.unlink()  # as if it was killed between the two
    cached_samples.samples_path(place).write_bytes(b"of another run")
    assert opened(path, cache).sample(1) == b"record of defg"


def test_a_process_waits_for_another_that_indexes_and_uses_its_result(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc"]), tmp_path / "cache"
    began, measured = threading.Event(), list[str]()

    def slowly(row: dict[str, Any]) -> Measured:
        measured.append(row["text"])
        began.set()
        assert waiting.wait(100)
        return measure(row)

    waiting = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(index_building.build_index, path, cache, "key", slowly)
        assert began.wait(100)
        second = threads.submit(index_building.build_index, path, cache, "key", slowly)
        waiting.set()
        assert first.result(20) == second.result(20)
    assert measured == ["abc"]


def test_caches_of_other_files_are_deleted(tmp_path: Path) -> None:
    cache, paths = tmp_path / "cache", [tiny.write_rows(tmp_path / f"{name}.jsonl", ["abc"]) for name in ("train", "val", "old")]
    for path in paths:
        opened(path, cache)
    for path in paths:
        cached_samples.index_path(path, cache).with_suffix(".reference").touch()
        cached_samples.index_path(path, cache).with_suffix(".parts").mkdir()
    index_building.discard_other_indexes(cache, paths[:2])
    assert len([*cache.glob("*.reference")]) == len([*cache.glob("*.parts")]) == 2
    assert len([*cache.glob("*.index")]) == len([*cache.glob("*.samples")]) == 2
    assert [cached_samples.open_rows(path, cache).sample(0) for path in paths[:2]] == [b"record of abc"] * 2


def test_files_that_a_killed_process_left_of_another_file_are_deleted_too(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "train.jsonl", ["abc"]), tmp_path / "cache"
    opened(path, cache)
    kept = {place.name for place in cache.iterdir()} | {f".speakers.json{files.TEMPORARY}00"}  # nobody else's
    for name in (f".old-1.samples{files.TEMPORARY}01", f".old-1.samples{files.TRASH}02", f".old-1.index{files.TEMPORARY}03", *kept):
        (cache / name).touch()
    index_building.discard_other_indexes(cache, [path])
    assert {place.name for place in cache.iterdir()} == kept


def test_a_fault_of_the_recipe_carries_the_place_of_its_row(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"])
    with pytest.raises(ZeroDivisionError) as caught:
        index_building.build_index(path, tmp_path / "cache", "key", lambda row: Measured(1 // (len(row["text"]) - 4)))
    assert caught.value.__notes__ == [f"while reading {path}:2"]
