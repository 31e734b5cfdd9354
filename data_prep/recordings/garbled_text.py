"""Text that was decoded with another encoding than its own: `puÃ² essere`, `pu? essere`, `Ïðèâåò`.

Some signs are certain in one text; others occur in correct texts too and count only if several texts of a file have one. Nothing is
repaired: the letters behind a `?` are lost, and a repair that is wrong would be trained on.
"""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from overtone.data_prep.manifest import AUTO

LOST = "letters replaced by question marks; they are lost"
UTF8_READ_AS = ("cp1252", "latin-1", "cp1251", "koi8-r", "cp1250", "cp437", "mac-roman", "gbk", "cp932")
"""Encodings that UTF-8 is often taken for."""
MULTIBYTE = ("gbk", "cp932")
"""Two bytes of these are UTF-8 by chance, as of `未知` in GBK; three hardly are."""
UNLIKELY = re.compile("[\u0530-\u058f\u0700-\u07ff]")
"""Letters of Armenian, Syriac and N'Ko, which UTF-8 is by chance: `l’été` in Mac Roman, `Spaß…` in Windows-1252."""
MAC_SIGN = re.compile(r"[√¬]|‚Ä|[–—][^\s\w\"“”«»…¿¡]")
"""Signs of UTF-8 that was read as Mac Roman. Quotation marks before letters with accents are UTF-8 by chance: `“Él`, `«État»`."""
SHOWN_AS = ("latin-1", "cp1252", "cp1251", "koi8-r", "cp866")
"""Encodings that text in other encodings is read as."""
ENCODINGS = {
    "russian": ("cp1251", "koi8-r", "cp866"),
    "ukrainian": ("cp1251", "koi8-u"),
    "bulgarian": ("cp1251",),
    "japanese": ("cp932", "euc_jp"),
    "chinese": ("gb18030", "big5"),
    "korean": ("cp949",),
    "greek": ("cp1253",),
    "hebrew": ("cp1255",),
    "arabic": ("cp1256",),
    "thai": ("cp874",),
}
"""Language → encodings of its own alphabet."""
LATIN1 = "letters of another alphabet that were read as Latin-1"
LOST_LETTER = re.compile(r"[^\W\d_]\?[a-z]")
"""Question mark in place of a letter. Followed by a capital, it is a question without a space behind it."""
TYPOGRAPHY = re.compile("[\u2010-\u203a\u20ac\u2122]")
"""Dashes, quotation marks, the signs for the euro and for trademarks."""
ADDRESS = re.compile(r"\S*(?:://|www\.|=|@)\S*")
"""Web addresses: a `?` in one does not replace a letter."""
ONLY_MARKS = re.compile(r"(?<!\S)\?{2,}(?!\S)")
ENDS_LOST = re.compile(r"[^\W\d_](?: ?\?)+,? +[a-zß-öø-ÿ]")
"""`pu? essere`: correct texts have this too, as a question after which the sentence continues."""
CONTROL = re.compile(r"[\x80-\x84\x86-\x9f]")
"""Control characters that Windows-1252 has letters and quotation marks for; without U+0085, a line break."""
INNER_SYMBOL = re.compile(r"[^\W\d_][¤¦§¨¬®¯°±¶¸¿¡†‡‰•‚„˜≥≤√∞≈◊]+[^\W\d_]|[a-zß-öø-ÿ][†‡‰‚„≥≤√∞≈◊ˆ˜](?!\w)")
INNER_SCRIPT = re.compile(
    "[a-zß-öø-ÿ][\u0590-\u06ff\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3\ue000-\uf8fe\uff61-\uff9f\u2500-\u25ff]{1,2}[a-zß-öø-ÿ]|"
    "[a-zß-öø-ÿ][\u2550-\u25ff]|[\u2550-\u25ff][a-zß-öø-ÿ]"
)
"""`Sch철ne`, `Gr╗▀e`: one or two characters of a script that is not mixed with Latin letters. Japanese and Korean words beside Latin ones
have more, or stand at an end."""
ESCAPE = re.compile(r"\\u[\da-fA-F]{4}|\\x[\da-fA-F]{2}|=[C-F][\dA-F]=[89AB][\dA-F]|%[C-F][\dA-F]%[89AB][\dA-F]")
"""`caf\\u00e9`, `caf=C3=A9`, `caf%C3%A9`: a letter as a program wrote it for another."""
CONTRACTION = re.compile(r"\b(?:do|is|ca|wo|did|does|was|are|were|have|has|had|could|would|should)n[íÕÔ¿Æ]t\b|\b[Ii]t[íÕÔ¿]s\b")
"""`isnít`, `donÕt`: an English apostrophe between Windows and Mac."""
INNER_CAPITAL = re.compile(r"[a-zß-öø-ÿ][À-ÖØ-Þ]|(?<![^\W\d_])[а-яё][А-ЯЁ]{2}")
"""`perchÈ`, `рТЙЧЕФ`: the case of letters is not that of a word."""
MOST_LATIN1 = 0.5
"""Share of the letters between À and ÿ above which a text is of another alphabet; Vietnamese, with the most, has a quarter."""
FEW_LETTERS = 12
"""Letters below which that alone is not certain."""
SYSTEMATIC, FEW_TEXTS = 0.33, 4
LEAST_TEXTS, LEAST_SHARE = 2, 0.05
"""Minimum number of texts of a file with a weak sign, and their minimum share of those that could have it."""
CODE_PAGES = {
    "cp1250": {
        "czech": "áčďéěíňóřšťúůýž", "slovak": "áäčďéíĺľňóôŕšťúýž", "polish": "ąćęłńóśźż", "hungarian": "áéíóöőúüű",
        "romanian": "ăâîşţ", "croatian": "čćđšž", "slovenian": "čšž",
    },
    "cp1254": {"turkish": "çğıöşü"},
    "cp1252": {
        "italian": "àèéìòù", "spanish": "áéíóúñü", "french": "àâæçèéêëîïôùûœ", "portuguese": "àáâãçéêíóôõú", "german": "äöüß",
        "catalan": "àçèéíïòóúü", "swedish": "åäö", "danish": "æøå", "norwegian": "æøå", "finnish": "äö", "dutch": "éëï",
    },
}  # fmt: skip
"""Code page → language → its letters outside ASCII. Languages of one page are not confused by letters that both have."""
READ_AS_PAGES = ("cp1252", "cp1250", "cp1254", "cp1251", "cp1253", "cp1256", "cp437", "mac-roman")
RIGHT_LETTERS = 0.25
"""Right letters for each wrong one up to which a file was read with another code page: all of its letters are wrong, if any."""
ACCENTED = frozenset(
    {"italian", "spanish", "french", "portuguese", "german", "catalan", "romanian", "czech", "polish", "turkish", "swedish"}
)
"""Languages in which a file of many texts without any letter outside ASCII is not plausible beside question marks inside its sentences."""


class GarbledTexts(NamedTuple):
    """The texts, among several, that were decoded wrongly."""

    found: dict[int, str]
    """Index of the text → its problem."""
    advice: str
    """Advice for the user, with the probable encoding of the text; "" if nothing was found."""


def find_garbled_texts(texts: Sequence[str], language: str = "") -> GarbledTexts:
    """Return the texts of one file that were decoded wrongly. `language`: full name, if it is known.

    If a third of the texts with letters outside ASCII are wrong, all of these are: the rest has no sign by chance.
    """
    found = {index: sign for index, text in enumerate(texts) if (sign := _find_certain_sign(text))}
    far = [index for index, text in enumerate(texts) if not text.isascii()]
    weak = {index: sign for index in far if index not in found and (sign := _find_weak_sign(texts[index]))}
    if _are_enough(len(weak) + sum(index in found for index in far), len(far)):
        found |= weak
    if sum(index in found for index in far) > SYSTEMATIC * len(far) and len(far) >= FEW_TEXTS:
        found |= {index: "the other texts of the file were decoded wrongly" for index in far if index not in found}
    found |= {index: sign for index, sign in _find_other_page(texts, language).items() if index not in found}
    found |= _find_lost_letters(texts, {index for index, sign in found.items() if sign == LOST}, language)
    return GarbledTexts(found, _advise([texts[index] for index in sorted(found)], set(found.values()), language) if found else "")


def _find_other_page(texts: Sequence[str], language: str) -> dict[int, str]:
    """Return the texts of a file whose letters are those that the language's own become when they are read with another code page: `þu` for
    `şu`, `Pøijï` for `Přijď`. Each of them looks like text, but the language has no such letters, and those that it has are missing."""
    page, own = next(((page, own[language]) for page, own in CODE_PAGES.items() if language in own), ("", ""))
    letters = own + "".join(one.upper() for one in own if len(one.upper()) == 1)
    counts = Counter("".join(texts))
    best: tuple[int, str, dict[str, str]] = (0, "", {})
    for shown in READ_AS_PAGES if own else ():
        pairs = {one: one.encode(page).decode(shown, "replace") for one in letters}
        wrong = {other: one for one, other in pairs.items() if other not in letters and other.isalpha()}
        count = sum(counts[other] for other in wrong)
        if count > best[0] and sum(counts[one] for one in wrong.values()) <= RIGHT_LETTERS * count:
            best = (count, shown, wrong)
    found = [index for index, text in enumerate(texts) if not best[2].keys().isdisjoint(text)]
    sign = f"letters that {language} lacks, as of {page} that was read as {best[1]}"
    return dict.fromkeys(found, sign) if _are_enough(len(found), len(texts)) else {}


def _find_lost_letters(texts: Sequence[str], certain: Set[int], language: str) -> dict[int, str]:
    """Return the texts with question marks for letters at the ends of words or alone, which questions look like: all texts with a question
    mark of a file that has lost all letters outside ASCII, those with a sentence that continues behind one otherwise."""
    bare = [ADDRESS.sub(" ", text) for text in texts]
    ends = {index for index, text in enumerate(bare) if ENDS_LOST.search(text)}
    is_ascii = all(text.isascii() for text in texts)
    if is_ascii and _are_enough(len(certain), len(texts)):
        return dict.fromkeys((index for index, text in enumerate(bare) if "?" in text), LOST)
    if is_ascii and language in ACCENTED and _are_enough(len(ends | certain), len(texts)):
        return dict.fromkeys(ends, LOST)
    return {}


def _are_enough(found: int, count: int) -> bool:
    return found >= max(LEAST_TEXTS, LEAST_SHARE * count)


def _find_certain_sign(text: str) -> str:
    """Return the problem of one text, without comparing it with others; "" if there is none."""
    if "\ufffd" in text:
        return "characters that could not be decoded (U+FFFD)"
    if ESCAPE.search(text):
        return "letters written as codes"
    if text.isascii():
        bare = ADDRESS.sub(" ", text)
        return LOST if LOST_LETTER.search(bare) or _is_mostly_marks(bare) else ""
    if CONTROL.search(text):
        return "control characters in place of letters or quotation marks"
    if name := find_utf8_reading(text):
        return f"UTF-8 that was read as {name}"
    if CONTRACTION.search(text):
        return "letters in place of apostrophes"
    bare = ADDRESS.sub(" ", text)
    if LOST_LETTER.search(bare) or _is_mostly_marks(bare):
        return LOST
    if _measure_latin1(text) > MOST_LATIN1 and sum(map(str.isalpha, text)) >= FEW_LETTERS:
        return LATIN1
    if _measure_badness(text) >= 2:
        return "sequences of characters that no language has"
    return ""


def _is_mostly_marks(text: str) -> bool:
    """Return whether whole words are question marks: `??? ????? ??`."""
    return len(ONLY_MARKS.findall(text)) >= 2 and text.count("?") > sum(map(str.isalpha, text))


def _find_weak_sign(text: str) -> str:
    if text.isascii():
        return ""
    if _measure_latin1(text) > MOST_LATIN1:
        return LATIN1
    if _measure_badness(text):
        return "sequences of characters that no language has"
    if INNER_SYMBOL.search(text):
        return "symbols inside words"
    if INNER_SCRIPT.search(text):
        return "letters of several alphabets in one word"
    if INNER_CAPITAL.search(text):
        return "capitals inside words"
    mixed = any(len(_list_alphabets(word)) > 1 for word in re.findall(r"[^\W\d_]{3,}", text))
    return "letters of several alphabets in one word" if mixed else ""


def _measure_latin1(text: str) -> float:
    """Return the share of the letters of a text that are between À and ÿ."""
    letters = [one for one in text if one.isalpha()]
    return sum("À" <= one <= "ÿ" for one in letters) / len(letters) if len(letters) > 3 else 0.0


def _list_alphabets(word: str) -> set[str]:
    """Return the alphabets of the letters of a word; the signs for micro and ohm are of none."""
    names = (unicodedata.name(one, "").partition(" ")[0] for one in word if one not in "µΩμ")
    return {name for name in names if name in ("LATIN", "GREEK", "CYRILLIC")}


def _measure_badness(text: str) -> int:
    """Return the number of sequences in a text that hardly ever occur except after wrong decoding, by ftfy's heuristic."""
    from ftfy.badness import badness

    return int(badness(text))


@functools.lru_cache(maxsize=1024)
def find_utf8_reading(text: str) -> str:
    """Return the encoding that the UTF-8 of a text was read as; "" if its bytes are not UTF-8 in any."""
    if text.isascii():
        return ""
    for name in UTF8_READ_AS:
        with contextlib.suppress(UnicodeError):
            decoded = text.encode(name).decode()
            if UNLIKELY.search(decoded) or (name in MULTIBYTE and not any(one > "\u07ff" for one in decoded)):
                continue
            if name == "mac-roman" and not MAC_SIGN.search(text):
                continue
            sequences = sum(not one.isascii() for one in decoded)
            # One pair may be by chance: `c’è` in Mac Roman, `LIBERTÉ»` in Windows-1252. The three characters of an apostrophe are not.
            if sequences > 1 or (sequences and ("Ã" in text or "Â" in text or TYPOGRAPHY.search(decoded))):
                return name
    return ""


def _advise(texts: Sequence[str], signs: Set[str], language: str) -> str:
    """Return advice on garbled texts."""
    readings = Counter(filter(None, map(find_utf8_reading, texts)))
    name, count = next(iter(readings.most_common(1)), ("", 0))
    if name and count > len(texts) / 8:
        return f"they look like UTF-8 that was read as {name}: save the file again as UTF-8 from the program that has the right text"
    if LOST in signs:
        return "save the text again as UTF-8 from the program that still has its letters: those behind ? are gone"
    name, shown = _guess_encoding(max(texts, key=len), signs, language)
    if name:
        return f"they look like {name} that was read as {shown}: read the original as {name} and save it as UTF-8"
    return "save the text again as UTF-8 from the program that has it right"


def _guess_encoding(text: str, signs: Set[str], language: str) -> tuple[str, str]:
    """Return (encoding of the language, encoding that it was read as), if they give a text of its script; ("", "") otherwise."""
    names = ENCODINGS.get(language, ENCODINGS["russian"][:2] if language in ("", AUTO) and LATIN1 in signs else ())
    best = (0.9, "", "")
    for shown in SHOWN_AS:
        for name in (name for name in names if name != shown):
            with contextlib.suppress(UnicodeError):
                best = max(best, (_measure_plausibility(text.encode(shown).decode(name)), name, shown), key=lambda one: one[0])
    return best[1], best[2]


def _measure_plausibility(text: str) -> float:
    """Return the share of the characters outside ASCII but punctuation that are letters of the most frequent script, in the case that words
    have."""
    far = [one for one in text if not one.isascii() and not unicodedata.category(one).startswith("P")]
    scripts = [unicodedata.name(one, "?").partition(" ")[0] if one.isalpha() else "LATIN" for one in far]
    if not scripts or any(unicodedata.category(one) == "Cc" and not one.isspace() for one in text):
        return 0.0
    kana = sum(name in ("HIRAGANA", "KATAKANA") for name in scripts)
    most = max((scripts.count(name) for name in {*scripts} - {"LATIN"}), default=0)
    wrong_case = len(re.findall(r"[а-яёα-ω][А-ЯЁΑ-Ω]", text))
    return (max(most, kana + scripts.count("CJK")) - 2 * wrong_case) / len(scripts)
