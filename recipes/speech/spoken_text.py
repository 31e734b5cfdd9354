"""The spoken part of a text: emoji, markup and invisible characters are dropped and counted, and a text of nothing else is refused.

Must not import torch: `overtone generate --help` imports modules that import this one.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass, replace

import regex

from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.finetune.errors import UserError, format_count

from .interface import SpeechRequest

TAGS = (
    *("a", "abbr", "b", "blockquote", "br", "center", "code", "dd", "del", "div", "dl", "dt", "em", "font", "h[1-6]", "hr", "i", "img"),
    *("ins", "li", "mark", "ol", "p", "pre", "q", "s", "small", "span", "strike", "strong", "sub", "sup", "table", "tbody", "td", "th"),
    *("thead", "tr", "tt", "u", "ul"),  # of HTML
    *("audio", "break", "desc", "emphasis", "lexicon", "metadata", "phoneme", "prosody", "say-as", "speak", "voice"),  # of SSML
)
"""Other names in angle brackets stay: `<laugh>` and `<sigh>` are words that some voices have learned."""
PATTERNS = {
    "emoji": regex.compile(
        r"(?:\p{RI}\p{RI}"  # a flag
        r"|(?:\p{Emoji_Presentation}|(?![©®™‼⁉])\p{Extended_Pictographic})"
        r"[\uFE0E\uFE0F\p{EMod}\U000E0020-\U000E007F]*(?:\u200D\p{Extended_Pictographic}[\uFE0F\p{EMod}]*)*"
        r"|[♩♪♫♬]|\uFE0F\u20E3|(?<=[©®™‼⁉])\uFE0F)"
    ),
    "tag": regex.compile(rf"</?(?:{'|'.join(TAGS)})(?:\s[^<>]{{0,500}})?/?>", regex.IGNORECASE),
}
"""Kind → pattern of the text that is dropped. The quantifiers have bounds, so that the time grows linearly with the text."""
MARKDOWN = (
    regex.compile(r"!?\[([^\[\]\n]{0,500})\]\((?:[^()\s]|\([^()\s]*\)){1,2000}\)"),  # a link or an image: its text is spoken
    regex.compile(r"(?<![\w*])\*\*\*?(?=\S)([^*\n]{1,500}?)(?<=\S)\*\*\*?(?![\w*])"),
    regex.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,500}?)(?<=[^\s*])\*(?![\w*])"),
    regex.compile(r"(?<![\w/])__?(?=[^\s_])([^\n]{1,500}?)(?<=[^\s_])__?(?![\w/])"),
    regex.compile(r"~~(?=\S)([^~\n]{1,500}?)(?<=\S)~~"),
    regex.compile(r"^[ \t]*+(?:`{3,}+[\w+-]*+[ \t]*+|(?:[-*_=|:][ \t]*+){3,}+)()$", regex.MULTILINE),  # a fence of code, or a line across
    regex.compile(r"`{1,3}([^`\n]{1,500})`{1,3}"),
    regex.compile(r"^[ \t]*#{1,6}[ \t]+(\S.*)$", regex.MULTILINE),  # a heading
    regex.compile(r"^[ \t]*(?:[*+•]|>)[ \t]+(\S.*)$", regex.MULTILINE),  # an item of a list, or a quotation
)
"""Markdown, each with the part that is spoken as its group. A lone `*` or `_` stays: `3 * 4`, `file_name`."""
ALSO_SPOKEN = frozenset("%&@§°+=#№℃℉½¼¾")
"""Signs that are spoken although they are neither letters nor digits nor currencies."""


@dataclass(frozen=True)
class SpokenText:
    """A text without the parts that nobody speaks."""

    text: str
    removed: Counter[str]
    """Kind → how often it was dropped."""

    def describe_removed(self) -> str:
        """Return what was dropped, as in `2 emoji, 1 markup`; empty if nothing was."""
        return ", ".join(f"{count} {kind if count > 1 else kind.removesuffix('s')}" for kind, count in sorted(self.removed.items()))


def clean_text(text: str) -> SpokenText:
    """Drop emoji, markup and invisible characters. A text that has none is returned as it is."""
    removed: Counter[str] = Counter()
    cleaned = text
    for pattern in MARKDOWN:
        cleaned, count = pattern.subn(r"\1", cleaned)
        removed["markup"] += count
    cleaned, removed["markup"] = _drop(PATTERNS["tag"], cleaned, removed["markup"])
    cleaned, removed["emoji"] = _drop(PATTERNS["emoji"], cleaned, 0)
    cleaned, invisible = remove_invisible(cleaned)  # as from the texts of the training
    removed.update(invisible)
    removed = +removed
    return SpokenText(cleaned.strip() if removed else text, removed)


def _drop(pattern: regex.Pattern[str], text: str, before: int) -> tuple[str, int]:
    """Return `text` without the matches, whose neighbours stay separate words, and `before` plus the number of matches."""
    found = pattern.findall(text)
    if not found:
        return text, before
    runs = regex.compile(rf"(\s*)(?:{pattern.pattern})(?:\s*(?:{pattern.pattern}))*(\s*)", pattern.flags)

    def close(match: regex.Match[str]) -> str:
        after = text[match.end() : match.end() + 1]
        if "\n" in match[1] + match[2]:
            return "\n"
        is_tag_in_a_word = "<" in match[0] and not match[1] and not match[2] and not regex.match(r"<(?:br|p|li|div|tr|td)", match[0])
        return "" if not after or after in ".,;:!?…)。，！？、" or is_tag_in_a_word else " "

    return runs.sub(close, text), before + len(found)


def has_speech(text: str) -> bool:
    """Return whether a text has anything to speak: a letter, a digit, a currency or another sign with a name."""
    return any(unicodedata.category(each)[0] in "LN" or unicodedata.category(each) == "Sc" or each in ALSO_SPOKEN for each in text)


def prepare_request(request: SpeechRequest, name: str) -> tuple[SpeechRequest, SpokenText]:
    """Return the request with its cleaned text, and what was dropped. Raises `UserError`, whose message calls the text `name`, if nothing
    is left."""
    cleaned = clean_text(request.text)
    if not has_speech(cleaned.text):
        shown = f" ({request.text.strip()[:40]!r})" if request.text.strip() else ""
        raise UserError(f"{name} has nothing to speak{shown}; give the words to speak")
    return replace(request, text=cleaned.text), cleaned


def describe_total(texts: list[SpokenText]) -> str:
    """Return what was dropped from all of the texts, as in `4 emoji from 3 texts`; empty if nothing was."""
    changed = [each for each in texts if each.removed]
    total = sum((each.removed for each in changed), Counter[str]())
    return f"{SpokenText('', total).describe_removed()} from {format_count(len(changed), 'text')}" if changed else ""
