"""A cache of what a model computes from reference clips."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.recipes.speech import reference_cache
from overtone.recipes.speech.reference_cache import ReferenceClips


def test_a_clip_is_encoded_once_until_its_content_changes(tmp_path: Path) -> None:
    encoded: list[Path] = []

    def encode(clip: Path) -> bytes:
        encoded.append(clip)
        return clip.read_bytes()

    clips, first, copy = ReferenceClips(encode), tmp_path / "a.wav", tmp_path / "b.wav"
    first.write_bytes(b"one")
    copy.write_bytes(b"one")
    assert [clips.get(first), clips.get(first), clips.get(copy)] == [b"one"] * 3 and encoded == [first]
    first.write_bytes(b"two")
    assert clips.get(first) == b"two" and encoded == [first, first]


def test_the_oldest_clip_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_cache, "CACHED_CLIPS", 2)
    encoded: list[str] = []
    clips = ReferenceClips(lambda clip: encoded.append(clip.name))
    for name in ("a", "b", "c", "b", "c", "a"):
        (tmp_path / name).write_text(name)
        clips.get(tmp_path / name)
    assert encoded == ["a", "b", "c", "a"]


def test_a_clip_that_cannot_be_encoded_removes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_cache, "CACHED_CLIPS", 1)
    encoded: list[str] = []

    def encode(clip: Path) -> None:
        encoded.append(clip.name)
        if clip.name == "bad":
            raise ValueError(clip)

    clips = ReferenceClips(encode)
    for name in ("good", "bad"):
        (tmp_path / name).write_text(name)
    clips.get(tmp_path / "good")
    with pytest.raises(ValueError, match="bad"):
        clips.get(tmp_path / "bad")
    clips.get(tmp_path / "good")
    assert encoded == ["good", "bad"]
