"""Language names become Whisper's codes."""

from __future__ import annotations

import pytest

from overtone.data_prep.transcription.whisper_languages import find_whisper_code
from overtone.finetune.errors import UserError


def test_full_names_become_codes_and_codes_stay() -> None:
    assert [find_whisper_code(name, multilingual=True) for name in ("english", "german", "chinese", "ja", None)] == [
        "en",
        "de",
        "zh",
        "ja",
        None,
    ]


def test_english_only_weights_refuse_other_languages() -> None:
    assert find_whisper_code(None, multilingual=False) == find_whisper_code("english", multilingual=False) == "en"
    with pytest.raises(UserError, match="--language german: this Whisper model is English-only"):
        find_whisper_code("german", multilingual=False)


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(UserError, match="--language klingon: not supported by Whisper; supported: afrikaans"):
        find_whisper_code("klingon", multilingual=True)
