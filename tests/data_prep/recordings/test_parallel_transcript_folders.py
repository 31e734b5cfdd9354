"""VCTK's tree of texts."""

from __future__ import annotations

from pathlib import Path

from data_prep.recordings.parallel_transcript_folders import describe_trees, find_text_in_tree, find_tree_speaker


def test_texts_are_found_in_the_tree_beside_that_of_the_recordings(tmp_path: Path) -> None:
    text = tmp_path / "txt" / "p225" / "p225_001.txt"
    text.parent.mkdir(parents=True)
    text.write_text("Please call Stella.")
    for recording in (tmp_path / "wav48" / "p225" / "p225_001.wav", tmp_path / "wav48_silence_trimmed" / "p225" / "p225_001_mic2.flac"):
        assert find_text_in_tree(recording) == text
        assert find_tree_speaker(recording, text) == "p225"
    assert find_text_in_tree(tmp_path / "wav48" / "p225" / "p225_002.wav") is None
    (flat := tmp_path / "txt" / "a.txt").write_text("A.")
    assert find_text_in_tree(tmp_path / "wavs" / "a.wav") == flat and find_tree_speaker(tmp_path / "wavs" / "a.wav", flat) is None


def test_a_tree_that_is_used_is_named(tmp_path: Path) -> None:
    texts = [tmp_path / "txt" / "p225" / "a.txt", tmp_path / "txt" / "p226" / "b.txt", tmp_path / "other" / "text" / "c.txt"]
    assert describe_trees(texts) == [
        f"1 text of the folder {tmp_path / 'other' / 'text'} used, as in VCTK",
        f"2 texts of the folder {tmp_path / 'txt'} used, as in VCTK",
    ]
