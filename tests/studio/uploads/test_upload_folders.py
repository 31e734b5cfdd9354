"""Folders of recordings and chats are found, also those that somebody made in a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.uploads.speaker_consent import CONSENT
from overtone.studio.uploads.upload_folders import (
    CHATS,
    RECORDINGS,
    count_files,
    count_recordings,
    has_transcripts,
    list_held_files,
    make_upload_folder,
)


def write(place: Path, *names: str) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"x")


def test_a_new_folder_is_made_once(tmp_path: Path) -> None:
    assert make_upload_folder(tmp_path, RECORDINGS, "me") == "recordings/me"
    with pytest.raises(UserError, match="exists already"):
        make_upload_folder(tmp_path, RECORDINGS, "me")


def test_folders_at_the_top_with_recordings_are_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        "recordings/b/a.wav",
        "my voice/a.flac",
        "texts/a.txt",
        ".hidden/a.wav",
        "data/a.wav",
        "data/summary.json",
        "chats/c/x.jsonl",
    )
    (tmp_path / "link").symlink_to(tmp_path / "my voice")
    assert count_files(tmp_path, RECORDINGS) == [("my voice", 1), ("recordings/b", 1)]
    assert count_files(tmp_path, CHATS) == [("chats/c", 1)]


def test_files_are_listed_without_links_hidden_files_and_the_consent(tmp_path: Path) -> None:
    write(tmp_path, "a.wav", "sub/b.FLAC", ".c.wav", CONSENT)
    (tmp_path / "d.wav").symlink_to("/etc/passwd")
    held = list_held_files(tmp_path)
    assert [(one.name, one.bytes) for one in held] == [("a.wav", 1), ("sub/b.FLAC", 1)] and count_recordings(held) == 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.wav"], False),
        (["a.wav", "b.txt"], False),
        (["a.wav", "a.txt"], True),
        (["sub/a.wav", "sub/a.transcript.json"], True),
        (["sub/a.wav", "a.txt"], False),
        (["a.wav", "metadata.csv"], True),
    ],
)
def test_transcripts_are_recognized(names: list[str], expected: bool, tmp_path: Path) -> None:
    write(tmp_path, *names)
    assert has_transcripts(list_held_files(tmp_path)) == expected
