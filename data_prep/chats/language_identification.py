"""Identifies the language of a text by its letters, with langid's model of 97 languages (Lui & Baldwin 2012), which py3langid contains."""

from __future__ import annotations

import functools
from typing import Any

from finetune.errors import UserError

LEAST_LETTERS = 20
"""Letters below which a text is of no known language: short ones such as "ok" are taken for any."""
MOST_CHARACTERS = 2000
"""Characters of a text that are looked at."""


def identify_language(text: str) -> str | None:
    """ISO 639-1 code of the most likely language; None for too few letters. Raises `UserError` if py3langid is not installed."""
    shown = text[:MOST_CHARACTERS]
    if sum(map(str.isalpha, shown)) < LEAST_LETTERS:
        return None
    return str(_load_identifier().classify(shown)[0])


@functools.cache
def _load_identifier() -> Any:
    try:
        import py3langid
    except ImportError:
        raise UserError("languages are identified with py3langid, which is not installed; `pip install 'overtone[text]'`") from None
    return py3langid
