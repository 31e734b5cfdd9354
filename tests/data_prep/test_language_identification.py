"""Texts of several languages and scripts are recognized, and texts that are too short for it are not guessed."""

from __future__ import annotations

import sys

import pytest

from overtone.data_prep import language_identification
from overtone.data_prep.language_identification import CLEAR_MARGIN, compare_language, find_other_script, identify_language, name_language
from overtone.finetune.errors import UserError


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


SENTENCES = {
    "english": "All human beings are born free and equal in dignity and rights, and endowed with reason and conscience.",
    "german": "Alle Menschen sind frei und gleich an Würde und Rechten geboren und mit Vernunft und Gewissen begabt.",
    "french": "Tous les êtres humains naissent libres et égaux en dignité et en droits, doués de raison et de conscience.",
    "spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos, dotados de razón y conciencia.",
    "italian": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti, dotati di ragione e di coscienza.",
    "portuguese": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos, dotados de razão e de consciência.",
    "polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw, obdarzeni rozumem.",
    "turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar, akıl ve vicdana sahiptirler.",
    "russian": "Все люди рождаются свободными и равными в своём достоинстве и правах, наделены разумом и совестью.",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है, उन्हें बुद्धि की देन प्राप्त है।",
    "chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。人人有资格享受本宣言的权利。",
}
CLOSE = {("spanish", "portuguese"), ("portuguese", "spanish")}


def test_a_text_is_compared_with_each_language() -> None:
    for own, text in SENTENCES.items():
        margins = {other: compare_language(text, other) for other in SENTENCES}
        assert all(found is not None for found in margins.values())
        assert {other for other, found in margins.items() if found.margin > CLEAR_MARGIN} == {
            other for other in SENTENCES if other != own and (own, other) not in CLOSE
        }
        assert margins[own].margin < -CLEAR_MARGIN
    assert margins["english"].other == "chinese" == name_language(text)
    assert compare_language(text, "klingon") is None and compare_language("42!", "english") is None


@pytest.mark.parametrize(
    ("text", "language", "script"),
    [
        ("Привет, да, нет", "english", "Cyrillic"),
        ("Hello, bye", "russian", "Latin"),
        ("Hello, bye", "japanese", "Latin"),
        ("お元気ですか、はい", "korean", "Hiragana"),
        ("今天下了一整天的雨", "english", "Cjk"),
        ("Tシャツを着たい", "japanese", ""),
        ("iPhone и МТС звонят", "russian", ""),
        ("Dobar dan svima", "serbian", ""),
        ("Привет", "english", ""),
        ("Hello, bye", "klingon", ""),
    ],
)
def test_a_script_that_a_language_is_not_written_in(text: str, language: str, script: str) -> None:
    assert find_other_script(text, language) == script
