"""Identifies the language of a text by its letters, with langid's model of 97 languages (Lui & Baldwin 2012), which py3langid contains."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from types import ModuleType
from typing import NamedTuple

from overtone.data_prep.language_codes import NAMES
from overtone.finetune.errors import UserError

LEAST_LETTERS = 20
"""Minimum letters of a text whose language is identified: short ones such as "ok" could be of any."""
MOST_CHARACTERS = 2000
"""Characters of a text that are examined."""


CLOSE = [
    frozenset(family.split())
    for family in (
        "es pt gl ca oc an", "fr oc", "no nb nn da sv", "is fo", "hr sr bs sl", "cs sk", "ru uk be bg mk sr", "nl af", "de lb",
        "id ms jv su", "zh yue wuu", "hi mr ne sa", "bn as", "fa ur ps", "tr az tk uz tt", "kk ky tt", "zu xh", "rw rn", "ga gd",
    )
]  # fmt: skip
"""Languages that are not distinguished here: short texts of one often look like another of them."""
LEAST_COMPARED = 60
"""Letters from which a text is compared with a language. Of 150 pieces of telephone prompts in each of five languages, all of their own
language have a margin below -0.4, all of another than the close ones above 0.4."""
CLEAR_MARGIN = 0.3
LEAST_ALONE, CLEAR_ALONE = 40, 0.5
"""The same for one sentence inside of a longer text."""


LATIN = re.findall(
    r"\w+",
    """
    afrikaans basque breton catalan croatian czech danish dutch english estonian finnish french galician german hungarian icelandic
    indonesian irish italian latvian lithuanian luxembourgish maltese norwegian polish portuguese romanian slovak slovenian spanish
    swedish turkish vietnamese welsh
    """,
)
SCRIPTS = {
    **dict.fromkeys(("russian", "ukrainian", "bulgarian", "belarusian", "macedonian"), frozenset({"CYRILLIC"})),
    **dict.fromkeys(("arabic", "persian", "urdu", "pashto"), frozenset({"ARABIC"})),
    **dict.fromkeys(("hindi", "marathi", "nepali"), frozenset({"DEVANAGARI"})),
    **dict.fromkeys(("chinese", "cantonese"), frozenset({"CJK", "BOPOMOFO"})),
    **dict.fromkeys(LATIN, frozenset({"LATIN"})),
    "japanese": frozenset({"CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH"}),
    "korean": frozenset({"HANGUL"}),
    "greek": frozenset({"GREEK"}),
    "hebrew": frozenset({"HEBREW"}),
    "thai": frozenset({"THAI"}),
    "georgian": frozenset({"GEORGIAN"}),
    "armenian": frozenset({"ARMENIAN"}),
    "tamil": frozenset({"TAMIL"}),
    "bengali": frozenset({"BENGALI"}),
}
"""Language → first words of the Unicode names of its letters; without languages that are written in several scripts."""
LEAST_OF_SCRIPT, SCRIPT_SHARE = 8, 0.9
"""Letters from which the script of a text is compared, and the share of them that must be of another one."""


class LanguageMargin(NamedTuple):
    """Comparison of a text with a language."""

    margin: float
    """Log-likelihood of the best other language minus that of the language, in nats per letter: positive if the other is more likely."""
    other: str
    """Name of that other language."""


def count_letters(text: str) -> int:
    """Return the number of letters of any script."""
    return sum(map(str.isalpha, text))


def compare_language(text: str, language: str) -> LanguageMargin | None:
    """Return the comparison of a text with `language` (full name), or one close to it: how much more likely another language is. None for a
    language that the model does not know, and for a text without letters."""
    code, letters = _list_codes().get(language), count_letters(text)
    if code is None or not letters:
        return None
    close = frozenset({code}).union(*(family for family in CLOSE if code in family))
    ranked = [(one, score) for one, score in _load_identifier().rank(text) if one in NAMES]
    own = max(score for one, score in ranked if one in close)
    other, best = next((one, score) for one, score in ranked if one not in close)
    return LanguageMargin((best - own) / letters, NAMES[other])


def find_other_script(text: str, language: str) -> str:
    """Return the script of most letters of a text, if the language (full name) is written in another one; "" otherwise, and for few
    letters. Unlike the language, it is certain in a few words."""
    letters = [one for one in text if one.isalpha()]
    if language not in SCRIPTS or len(letters) < LEAST_OF_SCRIPT:
        return ""
    counts = Counter(unicodedata.name(one, "?").partition(" ")[0] for one in letters)
    other = sum(count for name, count in counts.items() if name not in SCRIPTS[language])
    return counts.most_common(1)[0][0].title() if other >= SCRIPT_SHARE * len(letters) else ""


def name_language(text: str) -> str:
    """Return the full name of the most likely language of a text."""
    return NAMES[next(one for one, _ in _load_identifier().rank(text) if one in NAMES)]


@functools.cache
def _list_codes() -> dict[str, str]:
    """Return name of a language → its code in the model."""
    return {NAMES[code]: code for code, _ in _load_identifier().rank("") if code in NAMES}


def identify_language(text: str) -> str | None:
    """Return the ISO 639-1 code of the most likely language; None for too few letters. Raises `UserError` if py3langid is not installed."""
    shown = text[:MOST_CHARACTERS]
    if sum(map(str.isalpha, shown)) < LEAST_LETTERS:
        return None
    return str(_load_identifier().classify(shown)[0])


@functools.cache
def _load_identifier() -> ModuleType:
    try:
        import py3langid
    except ImportError:
        raise UserError("languages are identified with py3langid, which is not installed; `pip install 'overtone[text]'`") from None
    return py3langid
