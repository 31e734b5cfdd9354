"""Names of languages as Whisper's codes."""

from __future__ import annotations

import pytest

from data_prep.languages import code_of
from finetune.errors import UserError


def test_full_names_become_codes_and_codes_stay() -> None:
    assert [code_of(name, multilingual=True) for name in ("english", "german", "chinese", "ja", None)] == ["en", "de", "zh", "ja", None]


def test_weights_of_one_language_know_no_other() -> None:
    assert code_of(None, multilingual=False) == code_of("english", multilingual=False) == "en"
    with pytest.raises(UserError, match="--language german: these Whisper weights know English only"):
        code_of("german", multilingual=False)


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(UserError, match="--language klingon: Whisper does not know it; known: afrikaans"):
        code_of("klingon", multilingual=True)
