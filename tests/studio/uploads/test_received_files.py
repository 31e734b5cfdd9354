"""A file has its name only when it is whole, is never written through a link, and replaces nothing in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.studio.uploads import received_files
from overtone.studio.uploads.received_files import PARTS, FilePiece, StoredFile, store_piece


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "recordings" / "me").mkdir(parents=True)
    return tmp_path


def send(place: Path, content: bytes, name: str = "a.wav", id: str = "1", **query: Any) -> StoredFile:
    settings = {"offset": 0, "size": len(content), "replace": False, **query}
    return store_piece(place, FilePiece(id, "recordings/me", name, **settings), content)


def list_files(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in (place / "recordings").rglob("*") if not path.is_dir())


def test_a_file_that_was_cut_has_no_name(place: Path) -> None:
    assert not send(place, b"abc", size=6).is_whole
    assert list_files(place) == [] and (place / PARTS / "1").read_bytes() == b"abc"
    assert send(place, b"def", offset=3, size=6) == StoredFile("a.wav", is_whole=True, was_there=False)
    assert (place / "recordings/me/a.wav").read_bytes() == b"abcdef" and list((place / PARTS).iterdir()) == []


@pytest.mark.parametrize(("offset", "id"), [(2, "1"), (4, "1"), (3, "2"), (0, "1")])
def test_pieces_follow_each_other(offset: int, id: str, place: Path) -> None:
    send(place, b"abc", size=9)
    with pytest.raises(UserError, match="begin again"):
        send(place, b"def", offset=offset, size=9, id=id)
    assert list_files(place) == []


def test_a_refused_file_leaves_no_part(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(part: Path, target: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(files, "move_if_absent", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        send(place, b"abc")
    assert list((place / PARTS).iterdir()) == []


def test_an_empty_file_is_whole(place: Path) -> None:
    assert send(place, b"").is_whole and list_files(place) == ["recordings/me/a.wav"]


@pytest.mark.parametrize(("content", "size"), [(b"abc", 2), (b"", 5), (b"a", 2**40)])
def test_sizes_that_cannot_be_are_refused(content: bytes, size: int, place: Path) -> None:
    with pytest.raises(UserError, match="at most"):
        send(place, content, size=size)


def test_another_file_is_not_replaced_unless_the_person_wants_it(place: Path) -> None:
    send(place, b"old")
    assert send(place, b"old", id="2").was_there
    with pytest.raises(UserError, match="was not replaced"):
        send(place, b"new", id="3")
    assert (place / "recordings/me/a.wav").read_bytes() == b"old" and list((place / PARTS).iterdir()) == []
    send(place, b"new", id="4", replace=True)
    assert (place / "recordings/me/a.wav").read_bytes() == b"new"


@pytest.mark.parametrize("replace", [False, True])
def test_links_are_not_followed(replace: bool, place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "target").write_bytes(b"kept")
    (place / "recordings/me/a.wav").symlink_to(outside / "target")
    (place / "recordings/me/sub").symlink_to(outside)
    for name in ("a.wav", "sub/b.wav"):
        with pytest.raises(UserError):
            send(place, b"new", name, id=name[0], replace=replace)
    assert [path.name for path in outside.iterdir()] == ["target"] and (outside / "target").read_bytes() == b"kept"


def test_a_planted_part_is_not_followed(place: Path, tmp_path: Path) -> None:
    (place / PARTS).mkdir(parents=True)
    (tmp_path / "kept").write_bytes(b"kept")
    (place / PARTS / "1").symlink_to(tmp_path / "kept")
    for offset in (0, 4):
        with pytest.raises(UserError):
            send(place, b"more", offset=offset, size=8)
    assert (tmp_path / "kept").read_bytes() == b"kept"


def test_a_file_in_the_place_of_a_folder_is_named(place: Path) -> None:
    (place / "recordings/me/sub").write_bytes(b"kept")
    with pytest.raises(UserError, match="sub"):
        send(place, b"new", "sub/a.wav")
    assert (place / "recordings/me/sub").read_bytes() == b"kept"


def test_the_consent_is_no_upload(place: Path) -> None:
    with pytest.raises(UserError, match="keeps the consent"):
        send(place, b"{}", "Speaker_Consent.json")


def test_old_parts_are_removed_and_new_ones_stay(place: Path) -> None:
    send(place, b"a", size=2, id="1")
    send(place, b"a", size=2, id="2")
    os.utime(place / PARTS / "1", (0, 0))
    send(place, b"a", size=2, id="3")
    assert sorted(path.name for path in (place / PARTS).iterdir()) == ["2", "3"]


def test_a_folder_has_a_largest_number_of_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_files, "MOST_FILES", 1)
    send(place, b"a")
    with pytest.raises(UserError, match="in a terminal"):
        send(place, b"b", "b.wav", id="2")
