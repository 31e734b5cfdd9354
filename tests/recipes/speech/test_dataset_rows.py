"""Checks of a row that all speech recipes share, and the speakers of a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finetune.config import resolve
from finetune.errors import UserError
from recipes.csm.options import Options
from recipes.speech.dataset_rows import (
    check_codes,
    check_is_speech,
    check_text,
    collect_clips,
    describe_training_files,
    find_speaker_name,
    require_trained,
    shorten_source,
)

BAD = {
    "missing": (None, "the row has no audio_codes; run `python -m data_prep codes"),
    "empty": ([], "expected a list of at least one frame"),
    "text": ("1 2 3", "expected a list of at least one frame"),
    "ragged": ([[1, 2], [3]], r"frame 1: \[3\] is not a list of 2 codes"),
    "flat": ([1, 2], "frame 0: 1 is not a list of 2 codes"),
    "real": ([[1.5, 2.0]], "codes must be integers"),
    "nested": ([[[1], [2]]], "codes must be integers"),
    "negative": ([[1, -1]], "frame 0, codebook 1: -1 is outside of 0 … 7"),
    "large": ([[1, 2], [8, 1]], "frame 1, codebook 0: 8 is outside of 0 … 7; the codes come from another model"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_codes_are_refused_with_their_place(name: str) -> None:
    codes, message = BAD[name]
    with pytest.raises(UserError, match=message):
        check_codes(codes, 2, 8)


def test_good_codes_are_kept() -> None:
    assert check_codes([[0, 7], [3, 4]], 2, 8).tolist() == [[0, 7], [3, 4]]


def test_a_chat_and_a_row_without_text_or_speaker_are_refused() -> None:
    with pytest.raises(UserError, match=r"the row is a chat \(it has messages\), and csm trains on speech"):
        check_is_speech({"messages": []}, "csm")
    check_is_speech({"text": "a"}, "csm")
    for text in (None, "", " ", 3):
        with pytest.raises(UserError, match="expected the spoken words"):
            check_text(text)
    with pytest.raises(UserError, match="the row has no speaker; add"):
        find_speaker_name({"speaker": ""}, None)
    assert find_speaker_name({"speaker": "  Ann  Lee "}, "x") == "ann lee" and find_speaker_name({}, "Bob") == "bob"
    with pytest.raises(UserError, match="speaker 'cid' is not trained: the training data has only ann, bob"):
        require_trained("cid", {"bob": 1, "ann": 2})


def test_clips_frames_and_languages_are_counted_per_speaker(tmp_path: Path) -> None:
    rows = [("Bob", "de", 3), ("Ann", None, 4), ("bob", "English", 5), ("BOB", "de", 1)]
    text = "".join(json.dumps({"speaker": name, "language": language, "n": n}) + "\n" for name, language, n in rows)
    text += json.dumps({"speaker": "Ann", "n": 4, "time_shift": 0.04}) + "\n"  # a copy is no more speech
    (tmp_path / "train.jsonl").write_text(text)
    config = resolve("csm", Options, [], [("data.train", json.dumps(str(tmp_path / "train.jsonl")))])
    found = collect_clips(config, "csm", None, lambda row: row["n"])
    assert [*found] == ["ann", "bob"] and (found["bob"].clips, found["bob"].frames) == (3, 9)
    assert (found["ann"].clips, found["ann"].frames) == (1, 4)
    assert found["bob"].languages == {"german": 2, "english": 1} and found["ann"].languages == {"auto": 2}


def test_the_order_of_a_mixture_does_not_change_its_description(tmp_path: Path) -> None:
    paths = [tmp_path / name / "train.jsonl" for name in ("me", "replay")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    found = describe_training_files(paths)
    assert found == describe_training_files(paths[::-1]) and found["name"] == "me/train.jsonl, replay/train.jsonl"
    assert found["sha256"] not in (describe_training_files(paths[:1])["sha256"], describe_training_files(paths[1:])["sha256"])


def test_a_run_without_data_is_refused() -> None:
    with pytest.raises(UserError, match="data.train is not set"):
        collect_clips(resolve("csm", Options, [], []), "csm", None, len)


@pytest.mark.parametrize(
    ("source", "shown"), [("Qwen/Base", "Qwen/Base"), ("./nano", "nano"), ("runs/tiny/nano", "nano"), ("/home/me/private/base/", "base")]
)
def test_the_base_name_has_no_local_folders(source: str, shown: str) -> None:
    assert shorten_source(source) == shown


def test_a_local_folder_that_looks_like_a_hub_name_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert shorten_source("Qwen/Base") == "Base"


@pytest.mark.parametrize("code", [[1], {}, "1", None, 1.5, True, 10**30, [[]]])
def test_codes_that_are_no_integers_are_an_error(code: object) -> None:
    """Found by fuzzed rows: numpy makes no array of a list among numbers."""
    assert check_codes([[1, 2], [3, 4]], 2, 5).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UserError, match="audio_codes: codes must be integers; create the codes again"):
        check_codes([[1, 2], [3, code]], 2, 5)
