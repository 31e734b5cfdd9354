"""Checks of a row that all speech recipes share."""

from __future__ import annotations

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.dataset_row_checks import check_codes, check_is_speech, check_text, find_speaker_name

BAD = {
    "missing": (None, "the row has no audio_codes; run `overtone codes"),
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


@pytest.mark.parametrize("code", [[1], {}, "1", None, 1.5, True, 10**30, [[]]])
def test_codes_that_are_no_integers_are_an_error(code: object) -> None:
    """Found by fuzzed rows: numpy makes no array of a list among numbers."""
    assert check_codes([[1, 2], [3, 4]], 2, 5).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UserError, match="audio_codes: codes must be integers; create the codes again"):
        check_codes([[1, 2], [3, code]], 2, 5)
