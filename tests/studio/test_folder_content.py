"""Home lists what is in the folder, and follows no link."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.folder_content import find_age, find_file, find_inside, list_content


def write_dataset(folder: Path, **summary: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("{}\n")
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_datasets_runs_and_exports_are_found(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "chats", made_by="overtone text")
    (write_dataset(tmp_path / "data" / "me") / "codes").mkdir()
    write_dataset(tmp_path / ".hidden" / "chats")
    (tmp_path / "runs" / "a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "exports" / "a").mkdir(parents=True)
    (tmp_path / "exports" / "a" / "overtone.json").write_text(json.dumps({"recipe": "llm_sft", "format": "hf", "checkpoint": "c"}))
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    found = list_content(tmp_path)
    assert [(one.folder.name, one.kind, one.has_codes) for one in found.datasets] == [("chats", "chats", False), ("me", "voice", True)]
    assert [one.folder.name for one in found.runs] == ["a"] and [one.recipe for one in found.exports] == ["llm_sft"]


def test_one_bad_entry_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "data" / "good")
    write_dataset(tmp_path / "data" / "odd", made_by=[])
    (tmp_path / os.fsdecode(b"caf\xe9") / "checkpoints").mkdir(parents=True)
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = list_content(tmp_path)
    assert [(one.folder.name, one.kind) for one in found.datasets] == [("good", "voice"), ("odd", "voice")] and found.runs == []
    assert found.left_out == ["caf\\udce9 (its name is not UTF-8; rename it)", "closed (Permission denied)"]


def test_a_dataset_that_cannot_be_summarized_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "a")
    write_dataset(tmp_path / "b")

    def count(folder: Path) -> int:
        if folder.name == "a":
            raise ValueError("no number")
        return 1

    monkeypatch.setattr("overtone.studio.folder_content.count_bytes", count)
    found = list_content(tmp_path)
    assert [one.folder.name for one in found.datasets] == ["b"] and found.left_out == ["a (no number)"]


def test_a_run_inside_of_a_run_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "b" / "checkpoints").mkdir(parents=True)
    write_dataset(tmp_path / "a" / "data")
    found = list_content(tmp_path)
    assert [one.folder.name for one in found.runs] == ["a"] and [one.folder.name for one in found.datasets] == ["data"]


def test_only_files_inside_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.wav").touch()
    (tmp_path / "two.wav").touch()
    (tmp_path / "a" / "link.wav").symlink_to("/etc/hostname")
    assert find_file(tmp_path / "a", "one.wav", (".wav",)) == tmp_path / "a" / "one.wav"
    for name in ("../two.wav", "link.wav", "none.wav", "", "x" * 300 + ".wav"):
        assert find_file(tmp_path / "a", name, (".wav",)) is None


def test_a_folder_is_as_old_as_its_newest_record(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "a")
    os.utime(folder / "train.jsonl", (1, 1))
    os.utime(folder / "summary.json", (5, 5))
    assert find_age(folder) == 5 and find_age(tmp_path / "none") == 0


@pytest.mark.parametrize("name", ["/etc", "../x", "link", "none", "file", "x" * 300, "a\0"])
def test_only_folders_inside_are_used(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "file").touch()
    (tmp_path / "own").mkdir()
    assert find_inside(tmp_path, "own") == tmp_path / "own"
    with pytest.raises(UserError, match="is no folder in"):
        find_inside(tmp_path, name)
