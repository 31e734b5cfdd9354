"""Removes invisible characters from texts: soft hyphens, zero-width characters, directional marks, control characters, odd spaces.

They come with texts that were copied from the web or from a word processor. A model would learn tokens for them that no reader types.
Joiners stay where a script or an emoji needs them: Persian and Indic scripts write other words without them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

SOFT_HYPHEN = "soft hyphens"
ZERO_WIDTH = "zero-width characters"
DIRECTION = "directional marks"
SPACE = "no-break and other special spaces"
LINE_BREAK = "special line breaks"
CONTROL = "control characters"

NAMES = {
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u180e\u034f", ZERO_WIDTH),
    **dict.fromkeys("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", DIRECTION),
    **dict.fromkeys("\u0085\u2028\u2029\v\f\x1c\x1d\x1e\x1f", LINE_BREAK),
    "\u00ad": SOFT_HYPHEN,
}
VISIBLE = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2\u0890\u0891\U000110bd\U000110cd")
"""Marks of numbers and verses, which Unicode counts as format characters although they are drawn."""
FILLERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters without a shape, which are written as spaces."""
OBJECT = "\ufffc"
"""Placeholder of a picture in a copied text."""
ZWSP, ZWNJ, ZWJ = "\u200b", "\u200c", "\u200d"
JOINING = re.findall(
    r"\S+",
    """
    ARABIC SYRIAC MANDAIC MONGOLIAN NKO DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU KANNADA MALAYALAM SINHALA
    KHMER MYANMAR TIBETAN BALINESE JAVANESE
""",
)
"""First words of the Unicode names of letters between which joiners change what is read."""
WITHOUT_SPACES = ("KHMER", "THAI", "LAO", "MYANMAR", "TIBETAN")
"""Scripts that mark words with a zero-width space, as others do with a space."""
SUSPECT = re.compile(r"[^\S \t\n\r]|[^\w\s!-~]|[\u115f\u1160\u3164\uffa0\u180e\u034f]")
"""Characters that may be invisible: everything but letters, digits, ASCII and common spaces."""
HIDDEN = re.compile("[\u00ad\u200b\u2060\ufeff\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
"""Characters that stay in chats, where a message may be about them."""
AT_LINE_END = re.compile(r"\u00ad[ \t]*\n\s*")


def remove_invisible(text: str) -> tuple[str, Counter[str]]:
    """Return (text without invisible characters, number of those of each kind). Line breaks and spaces stay as they are."""
    found: Counter[str] = Counter()
    found[SOFT_HYPHEN] += len(AT_LINE_END.findall(text))
    text = AT_LINE_END.sub("", text)  # a word that was divided at the end of a line
    kept: list[str] = []
    position = 0
    for match in SUSPECT.finditer(text):
        replacement, kind = _replace(text, match.start())
        if kind:
            found[kind] += 1
            kept += [text[position : match.start()], replacement]
            position = match.end()
    return "".join([*kept, text[position:]]), +found


def count_hidden(text: str) -> Counter[str]:
    """Return the number of soft hyphens, zero-width characters and directional marks of a text, by kind; without joiners."""
    return Counter(NAMES[one] for one in HIDDEN.findall(text))


def _replace(text: str, at: int) -> tuple[str, str]:
    """Return (what to write in place of one character, kind); the kind is empty for a character that stays."""
    character = text[at]
    category = unicodedata.category(character)
    if character in FILLERS or category == "Zs":
        return " ", SPACE
    if character in VISIBLE or _is_needed(text, at):
        return character, ""
    if NAMES.get(character) == LINE_BREAK or category in ("Zl", "Zp"):
        return " ", LINE_BREAK
    if character in NAMES or character == OBJECT:
        return "", NAMES.get(character, ZERO_WIDTH)
    is_noncharacter = category == "Cn" and (ord(character) & 0xFFFE) == 0xFFFE
    if "\x80" <= character <= "\x9f":
        return character, ""  # a sign of a wrongly decoded text: `garbled_text` rejects it, a repair would hide it
    return ("", CONTROL) if category in ("Cc", "Cf") or is_noncharacter else (character, "")


def _is_needed(text: str, at: int) -> bool:
    """Return whether a joiner or a zero-width space has a function between its neighbours."""
    character, before, after = text[at], text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    if character == ZWSP:
        return _find_script(before) in WITHOUT_SPACES and _find_script(after) in WITHOUT_SPACES
    if character == ZWNJ:
        return _find_script(before) in JOINING and _find_script(after) in JOINING
    if character == ZWJ:
        is_emoji = bool(before and after) and _is_pictured(before) and _is_pictured(after)
        return is_emoji or _find_script(before) in JOINING
    return False


def _find_script(character: str) -> str:
    """Return the first word of the Unicode name of a letter or a mark; empty for other characters."""
    return unicodedata.name(character, "").split(" ")[0] if character and unicodedata.category(character)[0] in "LM" else ""


def _is_pictured(character: str) -> bool:
    """Return whether a character may be part of an emoji: a symbol, the colour of a skin, or the mark for the coloured form."""
    return character == "\ufe0f" or unicodedata.category(character) in ("So", "Sk")
