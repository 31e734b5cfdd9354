"""Remote recordings are downloaded once, again after a change, and give the same dataset as local ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overtone.data_prep.cli import voice
from overtone.data_prep.recordings.remote_recordings import download_recordings
from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, remote

CONTENT = {"a.wav": b"one", "deep/b.wav": b"two", "deep/b.txt": b"said"}


@pytest.fixture
def url(tmp_path: Path) -> RemoteAddress:
    for name, content in CONTENT.items():
        files.write_bytes(tmp_path / "elsewhere" / "talks" / name, content)
    files.write_bytes(tmp_path / "elsewhere" / "talks" / ".hidden", b"")
    return RemoteAddress(f"file://{tmp_path}/elsewhere/talks")


def held(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_new_or_changed_recordings_are_downloaded(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "me"
    folder = download_recordings(url, out)
    assert folder == tmp_path / "me.recordings" / "talks" and held(folder) == CONTENT
    assert capsys.readouterr().out.count(" of 3: ") == 3
    assert download_recordings(url, out) == folder and capsys.readouterr().out == ""
    remote.write(f"{url}/a.wav", b"longer")
    (tmp_path / "elsewhere" / "talks" / "deep" / "b.txt").unlink()
    (folder / "deep" / "b.wav").unlink()
    download_recordings(url, out)
    assert capsys.readouterr().out.count(" of 2: ") == 2 and held(folder) == {"a.wav": b"longer", "deep/b.wav": b"two"}


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "remove"])
def test_a_killed_download_leaves_no_partial_file(url: str, tmp_path: Path, operation: str) -> None:
    folder = download_recordings(url, tmp_path / "me")
    remote.write(f"{url}/a.wav", b"longer")

    def dies(kind: str, path: Path) -> None:
        if kind == operation and tmp_path / "me.recordings" in path.parents:
            raise KeyboardInterrupt

    with files.watch(dies), pytest.raises(KeyboardInterrupt):
        download_recordings(url, tmp_path / "me")
    assert (folder / "a.wav").read_bytes() in (b"one", b"longer") if (folder / "a.wav").exists() else True
    assert held(download_recordings(url, tmp_path / "me")) == {**CONTENT, "a.wav": b"longer"}
    assert files.list_unfinished(tmp_path / "me.recordings") == []


def test_a_damaged_download_record_causes_a_new_download(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = download_recordings(url, tmp_path / "me")
    ledger = folder.with_name("talks.jsonl")
    ledger.write_text(ledger.read_text()[:-20])
    capsys.readouterr()
    assert held(download_recordings(url, tmp_path / "me")) == CONTENT and capsys.readouterr().out.count(" of 1: ") == 1


def test_a_missing_remote_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no files; give the folder with your recordings"):
        download_recordings(RemoteAddress(f"file://{tmp_path}/gone"), tmp_path / "me")
    assert not (tmp_path / "me.recordings").exists()


@pytest.mark.slow
def test_remote_recordings_give_the_same_dataset_as_local_ones(sample, tmp_path: Path) -> None:
    there = shutil.copytree(sample, tmp_path / "elsewhere" / "talks")
    options = ("--transcripts", "--speaker-from", "folder", "--language", "en", "--workers", "0")
    assert voice.main([str(there), "--out", str(tmp_path / "here"), *options]) == 0
    assert voice.main([f"file://{there}", "--out", str(tmp_path / "brought"), *options]) == 0
    for name in ("train.jsonl", "val.jsonl", "rejects.jsonl", "summary.json"):
        assert (tmp_path / "brought" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name
