"""Files that rows name are found before they are read, and a change of one is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overtone.finetune.data.referenced_file_changes import describe_files, find_change
from overtone.finetune.errors import UserError


def test_an_unchanged_file_has_no_change_and_a_changed_one_is_named(tmp_path: Path) -> None:
    for name in ("a b.png", "ü\n.png"):
        (tmp_path / name).write_bytes(b"1234")
    lines = describe_files(["a b.png", "ü\n.png"], tmp_path)
    assert find_change(lines, tmp_path) is None and not any("\n" in line for line in lines)
    time = (tmp_path / "ü\n.png").stat().st_mtime_ns
    os.utime(tmp_path / "ü\n.png", ns=(time, time + 1))
    assert find_change(lines, tmp_path) == "the file 'ü\\n.png', which a row names, has changed"
    (tmp_path / "a b.png").unlink()
    assert find_change(lines, tmp_path) == "the file 'a b.png', which a row names, cannot be read (No such file or directory)"


@pytest.mark.parametrize("name", ["missing.png", "."])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read in .*; paths are relative to the file"):
        describe_files([name], tmp_path)


def test_files_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.png").write_bytes(b"1234")
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "secret.png")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        with pytest.raises(UserError, match=r"leads outside of .*data; only files in that folder are read"):
            describe_files([name], tmp_path / "data")
    with pytest.raises(UserError, match="is not a valid path"):
        describe_files(["nul\0"], tmp_path / "data")


@pytest.mark.parametrize("line", ["[]", '["a", "1", 2]', "{", "7"])
def test_an_invalid_line_is_no_change(line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"describes no file|Expecting property"):
        find_change([line], tmp_path)
