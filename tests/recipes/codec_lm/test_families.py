"""Tests of `recipes.codec_lm.families`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from recipes.codec_lm.families import FAMILIES, ORPHEUS, read_family
from recipes.codec_lm.sequence_layout import SpeechTextProcessor


def test_the_tokens_of_orpheus_have_its_authors_ids(released: SpeechTextProcessor) -> None:
    """The numbers stand in `engine_class.py` (prompt) and `main.py` of the streaming example (128258), of canopyai/Orpheus-TTS; 128262 and
    the order of training in the notebook to which its README refers."""
    ids = released.ids
    assert (ids.before_text, ids.after_text) == ((128259,), (128009, 128260, 128261, 128257))
    assert (ids.end_of_speech, ids.after_speech) == (128258, (128262,))
    assert (ids.codes.start, ids.codes.stop) == (128266, 128266 + 7 * 4096)


def test_the_authors_decoder_reads_each_token_as_its_code(released: SpeechTextProcessor) -> None:
    """`decoder.py` there: the number in a token's name, minus 10, minus 4096 for each place in the frame."""
    for slot in range(7):
        for code in (0, 1, 4095):
            (name,) = released.tokenizer.convert_ids_to_tokens([released.ids.first_code + 4096 * slot + code])
            assert int(name.removeprefix("<custom_token_").removesuffix(">")) - 10 - 4096 * slot == code


def test_every_row_of_the_table_names_each_codebook_once() -> None:
    assert FAMILIES[0] is ORPHEUS
    for family in FAMILIES:
        assert sorted(family.slots) == list(range(family.code_format.codebooks))
    assert ORPHEUS.frame_rate == pytest.approx(11.71875) and ORPHEUS.code_format.codebook_size == 4096


def test_a_folder_without_voices_json_is_of_the_table_and_one_with_it_says_its_own(tmp_path: Path) -> None:
    assert read_family(tmp_path) is ORPHEUS
    (tmp_path / "voices.json").write_text('{"speakers": []}')
    assert read_family(tmp_path) is ORPHEUS
    (tmp_path / "voices.json").write_text(json.dumps({"family": {**ORPHEUS.model_dump(), "codebook_size": 8}}))
    assert read_family(tmp_path).codebook_size == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": [0, 0, 1]}, "family.slots .* must name each codebook once"),
        ({"slots": []}, "family.slots .* must name each codebook once"),
        ({"codebook_size": 0}, "family.codebook_size: Input should be greater"),
        ({"before_text": "a"}, "family.before_text: Input should be a valid list"),
    ],
)
def test_an_invalid_family_is_refused_by_key(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "voices.json").write_text(json.dumps({"family": {**ORPHEUS.model_dump(), **change}}))
    with pytest.raises(UserError, match=message):
        read_family(tmp_path)
