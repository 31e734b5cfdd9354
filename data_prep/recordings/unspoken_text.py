"""Removes from the texts of recordings what nobody speaks, by one rule for subtitles, JSON, labels, plain texts and tables.

Markup, entities, songs, sound tags, timestamps, dashes of dialogues, emoji and the names of speakers are left out of the text. Everything
that is removed is counted with examples. Names of speakers are read: `StrippedText.speakers`.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from overtone.data_prep.recordings import sound_tags, speaker_labels
from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.data_prep.recordings.removed_text import RemovedText
from overtone.data_prep.recordings.sound_tags import TagDecision
from overtone.data_prep.recordings.speaker_labels import Label, LabelDecision

MARKUP, SONG, LABEL = "formatting tags and entities", "songs and musical notes", "names of speakers"
CREDITS = "credits of subtitles"
DASH, CHANGE, EMOJI = "dashes of dialogues", "marks of another speaker (>>)", "emoji"
FORMATTING = (
    "i|b|u|s|em|strong|font|c|v|lang|ruby|rt|rp|rb|span|p|br|div|small|big|sub|sup|strike|center|mark|a|tt|code|pre|h[1-6]|li|ul|ol|"
    "emphasis|break|prosody|speak|voice|phoneme|say-as|sync"
)
RUBY = re.compile(r"<r[tp]>[^<>]*</r[tp]>", re.IGNORECASE)
"""The reading of a Japanese word, and the parentheses around it: the word itself is spoken once."""
VOICE = re.compile(r"<v(?:\.[^\s>]+)?[ \t]+([^<>]+)>")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
FORMAT_TAG = re.compile(
    rf"</?(?:{FORMATTING})(?:[\s.][^<>]*)?/?>|<\d[\d:.,]*>|\{{\\[^{{}}]*\}}|\{{[YyFfSsCcPpHh]:[^{{}}]*\}}", re.IGNORECASE
)
BRACKET_FORMAT = re.compile(r"\[/?(?:i|b|u|s|color|font|size)(?:=[^\[\]]*)?\]|\{/?(?:i|b|u|s)\}", re.IGNORECASE)
"""Formatting as in forums: `[i]…[/i]`, `{i}…{/i}`. It counts as formatting only in a text with an end tag."""
BREAK_MARK = re.compile(r"\\[Nnh]")
"""Breaks and special spaces of styled subtitles, which converters leave in SubRip, and of texts that a program escaped twice."""
CREDIT = re.compile(
    r"\W*(?:(?:subtitles?|subtitled|captions?|captioned|captioning|sous-titr\w+|subt[ií]tul\w+|sottotitol\w+|legendas?|ondertitel\w+)"
    r"(?: \w+)? (?:by|par|por|door|a cura di) (?-i:[A-Z])|untertitel\w* im auftrag|untertitelung|субтитры (?:сделал|создавал|подготов)"
    r"|редактор субтитров|字幕\s?(?:by|提供|制作|製作)).*|.*\b(?:opensubtitles|amara\.org|addic7ed|subscene|podnapisi)\b.*",
    re.IGNORECASE | re.DOTALL,
)
"""`Subtitles by Anna`: a credit, at the beginning or the end of many files."""
MOST_WORDS_OF_CREDIT = 14
WORD_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]{0,30})/?>")
"""`<laugh>`, `<unk>`: a tag that is no formatting; it is read as `[laugh]`."""
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-zA-Z][a-zA-Z\d]{1,30});")
NOTES = "♩♪♫♬🎵🎶¶"
SUNG = re.compile(rf"[{NOTES}][^{NOTES}]*[{NOTES}]?|^\s*#\s[^#]*\s#\s*$")
ARROWS = re.compile(r">>+[ \t]*")
TURN = re.compile(r"\[SPEAKER_TURN\]")
"""Mark that whisper.cpp writes for a change of the speaker."""
LEADING_DASH = re.compile(r"\s*(?:[-−‐](?!\d)|[–—•])[-–—]*\s*(?=[\w\"'“«¿¡\[(（「{*♪>…])")
INNER_DASH = re.compile(r"(?<=[.?!…\"”])\s+[-–—]\s*(?=[A-ZÀ-ÞА-ЯЁ¿¡\"“])")
PICTURES = re.compile("[\U0001f000-\U0001faff\u2600-\u26ff\u2700-\u27bf\u2b00-\u2bff\ufe0f\u200d\u20e3\U000e0020-\U000e007f]+")
PICTURE = re.compile("[\U0001f000-\U0001faff\u2600-\u26ff\u2700-\u27bf\u2b00-\u2bff]")
INNER_LABEL = re.compile(
    rf"(?<=[\da-zß-ÿа-яё)\"”][.?!…])\s+(?=[\[(]?(?i:{speaker_labels.GENERIC.pattern})[\])]?\s?:|\[[^\W\d_][^\[\]\n]{{0,38}}\]:|"
    r"[A-ZÀ-ÞА-ЯЁ][A-ZÀ-ÞА-ЯЁ'. ]{1,30}:\s)"
)
"""Label of another speaker inside a line."""
LEADING_TIMES = re.compile(rf"(?:[\[(]\s*{sound_tags.TIME.pattern}\s*[\])]\s*)+")
CLOCK = re.compile(r"(?:\d{1,2}:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?(?:\s*[-–:]?\s+|\t)(?=\S)")
LEAST_CLOCKS, CLOCK_SHARE = 3, 0.5
MASKED = re.compile(r"[^\W\d_]\*{2,}[^\W\d_]|(?<!\S)[^\W\d_]{1,3}\*{2,}(?![\w*])|(?<=\S )\*{3,}(?![\w*])")
"""`f***`, `what the ****`: a word that the text does not show."""
HOLE = "\ue000"
"""Placeholder of removed text. No text contains it after `remove_invisible`, which replaces it."""
HOLES = re.compile(rf" ?{HOLE}[ {HOLE}]*")
BEFORE_PUNCTUATION = re.compile(rf"{HOLE}(?=[,.;:!?…、。，！？)\]])")


class StrippedText(NamedTuple):
    """One text without what nobody speaks."""

    text: str
    """On one line; empty if nothing of it is spoken."""
    speakers: tuple[str, ...] = ()
    """Names that labels give, in order."""
    changes: int = 0
    """Marks of a change of the speaker, without a name."""
    is_incomplete: bool = False
    """True if a mark says that somebody spoke words that are not in the text."""


class _Line(NamedTuple):
    """A line of a text without markup, marks of a speaker and dash."""

    text: str
    clock: str
    """The time of day or of the recording that it begins with; the label is after it."""
    label: Label | None
    voices: tuple[str, ...]
    changes: int
    has_dash: bool
    is_named_after_mark: bool


def read_spoken_texts(texts: Sequence[str], removed: RemovedText, by_line: bool = False) -> tuple[list[StrippedText], list[str]]:
    """Return (the spoken part of each text of a file, what was decided about ambiguous ones). `removed` counts what was left out.

    `by_line`: each line of a text may be an utterance, so names of speakers are counted per line.
    """
    read = [[_read_line(line, removed) for line in _split_lines(text, removed)] for text in texts]
    lines = [line for text in read for line in text]
    labels = [line.label for line in lines if line.label is not None]
    known = frozenset(label.key for label in labels if sound_tags.names_sound(label.name))
    certain = frozenset((one.label.form, one.label.key) for one in lines if one.label and one.is_named_after_mark)
    units = [[line] for line in lines] if by_line else read
    named = speaker_labels.decide_labels(labels, sum(any(line.text for line in unit) for unit in units), known, certain)
    clocked = sum(bool(line.clock) and not (line.label and named.is_label(line.label)) for line in lines)
    timed = clocked >= LEAST_CLOCKS and clocked >= CLOCK_SHARE * len(lines)
    tags = sound_tags.decide_tags(line.label.rest if line.label and named.is_label(line.label) else line.text for line in lines)
    kept: Counter[str] = Counter()
    spoken = [
        _join_lines([_strip_line(line, named, tags, timed, removed, kept) for line in text], sum(line.has_dash for line in text))
        for text in read
    ]
    return spoken, _describe_decisions(named, clocked if not timed else 0, kept)


def strip_markup(text: str) -> str:
    """Return a text without formatting tags, with its entities decoded."""
    return _strip_markup(text, RemovedText())


def _split_lines(text: str, removed: RemovedText) -> list[str]:
    """Return the lines of a text without invisible characters and songs; at least one."""
    clean, invisible = remove_invisible(text.replace(HOLE, ""))
    for kind, count in invisible.items():
        removed.add(kind, count=count)
    if CREDIT.fullmatch(clean) and len(clean.split()) <= MOST_WORDS_OF_CREDIT:
        removed.add(CREDITS, clean)
        return [""]
    clean, marks = BREAK_MARK.subn(lambda one: " " if one[0] == "\\h" else "\n", BREAK.sub("\n", clean))
    if "[/" in clean or "{/" in clean:
        clean, tags = BRACKET_FORMAT.subn("", clean)
        marks += tags
    if marks:
        removed.add(MARKUP, count=marks)
    if SUNG.search(clean):
        for found in SUNG.findall(clean):
            removed.add(SONG, found)
        clean = SUNG.sub(HOLE, clean)
    return (INNER_LABEL.sub("\n", clean) if ":" in clean else clean).split("\n")


def _read_line(line: str, removed: RemovedText) -> _Line:
    voices = tuple(name.strip() for name in VOICE.findall(line))
    for name in voices:
        removed.add(LABEL, f"<v {name}>")
    plain = _strip_markup(VOICE.sub("", line), removed).strip()
    changes = 0
    if ">>" in plain or "[SPEAKER_TURN]" in plain:
        plain, first = ARROWS.subn(HOLE, plain)
        plain, second = TURN.subn(HOLE, plain)
        changes = first + second
        removed.add(CHANGE, count=changes)
    after_mark = changes > 0 and plain.startswith(HOLE)
    plain = plain.strip(HOLE + " ") if after_mark else plain
    dash = LEADING_DASH.match(plain)
    if dash:
        removed.add(DASH, plain.replace(HOLE, ""))
        plain, inner = INNER_DASH.subn(" ", plain[dash.end() :])
        changes += inner
        removed.add(DASH, count=inner)
    if times := LEADING_TIMES.match(plain):
        removed.add(sound_tags.TIMESTAMP, times[0])
        plain = plain[times.end() :]
    clock = CLOCK.match(plain)
    bare = re.sub(
        r"^\*{1,2}([^*]{1,40}[:：]?)\*{1,2}(?=\s*[:：]|\s)", r"\1", plain[clock.end() :] if clock else plain
    )  # a name in bold type
    label = speaker_labels.find_label(bare)
    if label is not None and (label.form == "bracket" and not label.rest.strip()):
        label = None
    named = after_mark and label is not None and label.form == "colon" and label.name.isupper()
    return _Line(plain, clock[0] if clock else "", label, voices, changes, dash is not None, named)


def _strip_markup(text: str, removed: RemovedText) -> str:
    if not ("<" in text or "{" in text or "&" in text):
        return text
    text, count = FORMAT_TAG.subn("", RUBY.sub("", text))
    text = WORD_TAG.sub(lambda one: "" if one[1] else f"[{one[2]}]", text)
    for _ in range(2):  # some sites write entities of entities, or tags as entities
        entities = len(ENTITY.findall(text))
        if not entities:
            break
        decoded = remove_invisible(ENTITY.sub(lambda one: html.unescape(one[0]), text))[0]
        text, tags = FORMAT_TAG.subn("", decoded)
        count += entities + tags
    if count:
        removed.add(MARKUP, count=count)
    return text


def _strip_line(
    line: _Line, named: LabelDecision, tags: TagDecision, timed: bool, removed: RemovedText, kept: Counter[str]
) -> StrippedText:
    """Return a line without its label, tags and pictures."""
    text, speakers = line.text, list(line.voices)
    label = line.label if line.label is not None and named.is_label(line.label) else None
    if line.clock and (timed or label is not None):
        removed.add(sound_tags.TIMESTAMP, line.clock)
        text = text[len(line.clock) :]
    if label is not None:
        removed.add(LABEL, label.shown)
        speakers.append(label.name)
        text = label.rest
    text, lost = _strip_tags(text, tags, removed, kept)
    lost |= bool(MASKED.search(text))
    if PICTURE.search(text):
        removed.add(EMOJI, count=len(PICTURE.findall(text)), example="".join(PICTURE.findall(text)))
        text = PICTURES.sub(HOLE, text)
    return StrippedText(text, tuple(speakers), line.changes, lost)


def _strip_tags(text: str, tags: TagDecision, removed: RemovedText, kept: Counter[str]) -> tuple[str, bool]:
    """Return (the line with holes for its tags, whether words are missing)."""
    lost = False
    if "((" in text:
        lost = any(not found.strip() for found in sound_tags.UNCERTAIN.findall(text))
        text = sound_tags.UNCERTAIN.sub(lambda one: f"({one[1]})" if sound_tags.names_sound(one[1]) else one[1], text)
    pieces, position = list[str](), 0
    for tag in sound_tags.find_tags(text):
        kind, content = sound_tags.classify(text, tag, tags), HOLE
        if kind == sound_tags.KEPT:
            kept[text[tag.start : tag.stop].replace(HOLE, "")] += 1
            continue
        if kind in (sound_tags.STRESS, sound_tags.BRACKETS):
            content = tag.content
        lost |= kind == sound_tags.NOT_UNDERSTOOD
        removed.add(kind, text[tag.start : tag.stop].replace(HOLE, ""))
        pieces += [text[position : tag.start], content]
        position = tag.stop
    return "".join([*pieces, text[position:]]), lost


def _join_lines(lines: list[StrippedText], dashes: int) -> StrippedText:
    """Return the lines of one text as one; `dashes`: how many of them began with a dash, as each speaker's words in a dialogue do."""
    text = " ".join(" ".join(line.text for line in lines).split())
    if HOLE in text:
        text = re.sub(rf"^[{HOLE} ]+[:：,;]\s*", "", text)
        text = " ".join(BEFORE_PUNCTUATION.sub("", HOLES.sub(HOLE, text)).replace(HOLE, " ").split())
    text = text if re.search(r"\w", text) else ""
    speakers = tuple(name for line in lines for name in line.speakers)
    changes = sum(line.changes for line in lines) + max(0, dashes - 1)
    return StrippedText(text, speakers, changes, any(line.is_incomplete for line in lines))


def _describe_decisions(named: LabelDecision, clocked: int, kept: Counter[str]) -> list[str]:
    """Return notes on words that stay in the texts although they look unspoken."""
    found = []
    if named.kept:
        more = ", …" * (len(named.kept) > 3)
        found.append(f"kept as spoken, since too rare for names of speakers: {', '.join(named.kept[:3])}{more}")
    if clocked:
        found.append(f"kept as spoken, since too rare for timestamps: the time at the start of {clocked} texts")
    if kept:
        shown = ", ".join(repr(one) for one in list(kept)[:3]) + ", …" * (len(kept) > 3)
        found.append(f"kept as spoken: {sum(kept.values())} parentheses, such as {shown}")
    return found
