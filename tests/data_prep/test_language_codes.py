"""Codes of languages in tables."""

from __future__ import annotations

import pytest

from overtone.data_prep.language_codes import NAMES, find_language_name
from overtone.data_prep.manifest import LANGUAGES


@pytest.mark.parametrize(
    ("code", "name"),
    [("JP", "japanese"), ("sv-SE", "swedish"), ("zh_Hant_TW", "chinese"), ("deu", "german"), (" EN ", "english"), ("xx", None), ("", None)],
)
def test_a_code_is_a_language_without_its_region(code: str, name: str | None) -> None:
    assert find_language_name(code) == name


def test_the_names_are_those_of_the_rows() -> None:
    assert {code: NAMES[code] for code in LANGUAGES} == LANGUAGES
    assert all(code.isalpha() and len(code) in (2, 3) and name.isalpha() for code, name in NAMES.items()) and len(NAMES) > 120
