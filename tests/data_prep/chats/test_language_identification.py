"""Texts of several languages and scripts are recognized, and texts that are too short for it are not guessed."""

from __future__ import annotations

import sys

import pytest

from data_prep.chats import language_identification
from data_prep.chats.language_identification import identify_language
from finetune.errors import UserError


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("en", "The weather was so cold this morning that the lake froze over."),
        ("de", "Heute Morgen war es so kalt, dass der ganze See zugefroren ist."),
        ("es", "Esta mañana hacía tanto frío que el lago se congeló por completo."),
        ("it", "Stamattina faceva così freddo che il lago si è ghiacciato."),
        ("ru", "Сегодня утром было так холодно, что озеро полностью замёрзло."),
        ("zh", "今天早上天气非常寒冷，整个湖面都结了厚厚的一层冰，大家都不敢出门。"),
        (None, "ok"),
        (None, "42 + 17 = 59, 1 2 3 4 5 6 7 8 9 10 11 12 13"),
        (None, ""),
    ],
)
def test_languages_are_recognized(code: str | None, text: str) -> None:
    assert identify_language(text) == code


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(UserError, match=r"pip install 'overtone\[text\]'"):
        language_identification._load_identifier.__wrapped__()
