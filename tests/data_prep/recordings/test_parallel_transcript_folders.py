"""VCTK's tree of texts."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from overtone.data_prep.recordings.parallel_transcript_folders import describe_trees, find_texts_in_trees, find_tree_speaker
from overtone.finetune.errors import UserError


def test_texts_are_found_in_the_tree_beside_that_of_the_recordings(tmp_path: Path) -> None:
    text = tmp_path / "txt" / "p225" / "p225_001.txt"
    text.parent.mkdir(parents=True)
    text.write_text("Please call Stella.")
    for recording in (tmp_path / "wav48" / "p225" / "p225_001.wav", tmp_path / "wav48_silence_trimmed" / "p225" / "p225_001_mic2.flac"):
        assert find_texts_in_trees([recording]) == {recording: text}
        assert find_tree_speaker(recording, text) == "p225"
    assert find_texts_in_trees([tmp_path / "wav48" / "p225" / "p225_002.wav"]) == {} == find_texts_in_trees([])
    (flat := tmp_path / "txt" / "a.txt").write_text("A.")
    recording = tmp_path / "wavs" / "a.wav"
    assert find_texts_in_trees([recording]) == {recording: flat} and find_tree_speaker(recording, flat) is None


def test_a_tree_that_is_used_is_named(tmp_path: Path) -> None:
    texts = [tmp_path / "txt" / "p225" / "a.txt", tmp_path / "txt" / "p226" / "b.txt", tmp_path / "other" / "text" / "c.txt"]
    assert describe_trees(texts) == [
        f"1 text of the folder {tmp_path / 'other' / 'text'} used, as in VCTK",
        f"2 texts of the folder {tmp_path / 'txt'} used, as in VCTK",
    ]


def test_names_in_a_tree_may_differ_in_their_unicode_form(tmp_path: Path) -> None:
    (tmp_path / "txt").mkdir()
    for name in ("fünf.txt", "Eins.txt"):
        (tmp_path / "txt" / name).write_text("A.")
    recordings = [tmp_path / "wavs" / name for name in (unicodedata.normalize("NFD", "fünf.wav"), "eins_mic1.flac", "eins_mic2.flac")]
    assert [find_texts_in_trees(recordings)[path].name for path in recordings] == ["fünf.txt", "Eins.txt", "Eins.txt"]
    (tmp_path / "txt" / "eins.txt").write_text("B.")
    assert find_texts_in_trees(recordings)[recordings[1]].name == "eins.txt"
    composed, decomposed = (tmp_path / "txt" / "Rémi", tmp_path / "wavs" / unicodedata.normalize("NFD", "Rémi"))
    composed.mkdir()
    (composed / "a.txt").write_text("A.")
    assert find_texts_in_trees([decomposed / "a.wav"]) == {decomposed / "a.wav": composed / "a.txt"}
    assert find_tree_speaker(decomposed / "a.wav", composed / "a.txt") == decomposed.name
    with pytest.raises(UserError, match=r"Eins.txt: names both EINS and eiNs; name it exactly as one of them"):
        find_texts_in_trees([tmp_path / "wavs" / "EINS.wav", tmp_path / "wavs" / "eiNs.wav"])
