"""Every file is found once under a unique name, and files that are not read are counted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from overtone.data_prep.chats.chat_file_search import AGAIN, FoundSources, download_chats, find_sources
from overtone.finetune.errors import UserError
from tests.data_prep import make_saved_by_datasets as saved
from tests.finetune import fake_hub


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(path))


def names(gathered: FoundSources) -> list[str]:
    return [source.name for source in gathered.sources]


def test_files_are_sorted_within_each_given_folder_and_unread_ones_are_counted(tmp_path: Path) -> None:
    more = tmp_path / "more"
    touch(*(more / name for name in ("b.jsonl", "a/z.csv", ".hidden.jsonl", "notes.txt", "LICENSE", "x.jsonl/y.JSON", "c.jsonl.zst")))
    touch(more / "old.parquet.gz", more / "d.tsv.gz", tmp_path / "first.json")
    os.mkfifo(more / "pipe.jsonl")
    found = find_sources([tmp_path / "first.json", more])
    assert names(found) == ["first.json", "more/a/z.csv", "more/b.jsonl", "more/d.tsv.gz", "more/x.jsonl/y.JSON"]
    others = {"hidden": 1, ".txt": 1, "without a suffix": 1, ".jsonl.zst": 1, ".parquet.gz": 1, "neither file nor folder": 1}
    assert found.skipped == others


def test_a_file_is_read_once_however_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "chats" / "a.jsonl")
    (tmp_path / "chats" / "same.jsonl").symlink_to("a.jsonl")
    (tmp_path / "chats" / "same").symlink_to(".")
    monkeypatch.chdir(tmp_path / "chats")
    found = find_sources([tmp_path / "chats" / "a.jsonl", tmp_path / "chats", Path(), Path("..", "chats", "a.jsonl")])
    assert names(found) == ["a.jsonl"] and found.skipped == {AGAIN: 5}
    assert names(find_sources([saved.HERE / "splits" / "test", saved.HERE / "splits"])) == ["test", "splits/train"]


def test_two_files_never_share_a_name(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name / "chats" / "a.jsonl" for name in ("one", "two", "b/two"))
    touch(one, two, three, one.parent / "b.jsonl")
    assert names(find_sources([one.parent, two.parent])) == ["one/chats/a.jsonl", "chats/b.jsonl", "two/chats/a.jsonl"]
    assert names(find_sources([one, two.parent])) == ["one/chats/a.jsonl", "two/chats/a.jsonl"], "a.jsonl alone could be either"
    assert names(find_sources([two, three])) == [f"{tmp_path.name}/two/chats/a.jsonl", "b/two/chats/a.jsonl"]


def test_a_link_keeps_its_own_name_and_type(tmp_path: Path) -> None:
    """So a hub's cache holds what it has loaded."""
    blob, data = tmp_path / "blobs" / "0a1b2c", tmp_path / "snapshots" / "f00" / "data"
    touch(blob, tmp_path / "snapshots" / "f00" / "README.md")
    data.mkdir()
    (data / "train.parquet").symlink_to("../../../blobs/0a1b2c")
    (tmp_path / "mine").symlink_to(data)
    assert names(find_sources([tmp_path / "snapshots" / "f00"])) == ["f00/data/train.parquet"]
    assert names(find_sources([tmp_path / "mine"])) == ["mine/train.parquet"]
    assert names(find_sources([data / "train.parquet"])) == ["train.parquet"]
    whole = find_sources([tmp_path])
    assert names(whole) == [f"{tmp_path.name}/mine/train.parquet"]
    assert whole.skipped == {"without a suffix": 1, ".md": 1, AGAIN: 1}
    assert whole.sources[0].kind == "parquet"


@pytest.mark.timeout(20)
def test_circular_links_are_followed_only_once(tmp_path: Path) -> None:
    folders = [tmp_path / f"n{number}" for number in range(12)]
    for folder in folders:
        touch(folder / "a.jsonl")
        for other in folders:
            (folder / f"to_{other.name}").symlink_to(other)
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    assert len(names(find_sources([tmp_path]))) == 13, "every file once, and the broken link, of which its reading tells"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.jsonl", "absent.jsonl does not exist; give files"),
        ("a.txt", "a.txt holds nothing to read; known are .jsonl"),
        ("a.jsonl.zst", "decompress it first"),
        ("folder", r"folder holds nothing to read \(1 .txt\); known are"),
        ("x" * 300, "does not exist|cannot be read"),
        ("a.txt/b.jsonl", "does not exist|cannot be read"),
    ],
)
def test_a_place_without_conversations_is_named(tmp_path: Path, name: str, message: str) -> None:
    touch(tmp_path / "a.txt", tmp_path / "a.jsonl.zst", tmp_path / "folder" / "b.txt")
    with pytest.raises(UserError, match=message):
        find_sources([tmp_path / name])


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", closed)  # the tests may run as one to whom no folder is closed
    with pytest.raises(UserError, match=rf"{tmp_path} cannot be read \(Permission denied\)"):
        find_sources([tmp_path])


def test_names_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.jsonl")
    shutil.copy(__file__, path)
    assert names(find_sources([path])) == [r"\xff.jsonl"]


def test_the_training_split_of_a_hub_dataset_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_names(dataset: str, *splits: str) -> list[str]:
        return [path.name for path in download_chats(dataset, [], splits)]

    files = "\n".join(f"  - split: {name}\n    path: {name}-*" for name in ("train_sft", "test_sft"))
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}\n---\n".encode()
    with fake_hub.opened() as hub:
        fake_hub.point_client_at(hub, tmp_path / "hf", monkeypatch)
        hub.repositories["datasets/me/card"] = {"README.md": card, "train_sft-0.jsonl": b"{}", "test_sft-0.jsonl": b"{}"}
        several = {f"data/{name}.jsonl": b"{}" for name in ("train_sft-0-of-1", "train_gen-0-of-1", "Test-0")}
        hub.repositories["datasets/me/several"] = {"README.md": b"#", **several}
        assert list_names("me/card") == ["train_sft-0.jsonl"] and list_names("me/card", "test_sft") == ["test_sft-0.jsonl"]
        with pytest.raises(UserError, match="several splits: train_gen, train_sft; choose with --split NAME"):
            list_names("me/several")
        assert list_names("me/several", "train_gen", "test") == ["Test-0.jsonl", "train_gen-0-of-1.jsonl"]
    with pytest.raises(UserError, match=f"--split chooses a part of a dataset on the hub, and {tmp_path} is a path"):
        list_names(str(tmp_path), "train")
    with pytest.raises(UserError, match="--config chooses a part"):
        download_chats(str(tmp_path), ["en"], [])
