"""Subtitles with styles, read by pysubs2: nothing of them is dropped without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.styled_subtitles import parse_styled
from overtone.data_prep.recordings.timed_cues import ParsedCues
from overtone.finetune.errors import UserError

HEAD = """[Script Info]
; made by hand
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname
Style: Default,Arial

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
EVENT = "Dialogue: 0,{},{},Default,{},0,0,0,,{}\n"


def make_ass(*events: tuple[str, str, str, str]) -> str:
    return HEAD + "".join(EVENT.format(*event) for event in events)


def list_cues(parsed: ParsedCues) -> list[tuple[str, float, float, str, str | None]]:
    return [tuple(cue) for cue in parsed.cues]


def test_events_of_advanced_substation() -> None:
    content = make_ass(
        ("0:00:00.50", "0:00:02.00", "", "{\\an8\\k20}First,{\\i1} and\\Nsecond\\hline{\\i0}"),
        ("0:00:02.50", "0:00:04.00", "Anna", "Third, with a comma."),
        ("0:00:04.00", "0:00:05.00", "", "{\\p1}m 0 0 l 10 10{\\p0}"),
    )
    content += "Comment: 0,0:00:05.00,0:00:06.00,Default,,0,0,0,,to be checked\n"
    found = parse_styled(content, Path("talk.ass"))
    assert list_cues(found) == [
        ("talk.ass:11", 0.5, 2.0, "First, and\nsecond line", None),
        ("talk.ass:12", 2.5, 4.0, "Third, with a comma.", "Anna"),
    ]
    assert found.notes == ("2 comments, drawings and empty events left out",) and found.skipped == ()
    old = HEAD.replace("Layer", "Marked").replace("V4+", "V4") + "Dialogue: Marked=0,0:00:01.00,0:00:02.00,Default,,0,0,0,,Old.\n"
    assert list_cues(parse_styled(old, Path("talk.ssa"))) == [("talk.ssa:11", 1.0, 2.0, "Old.", None)]


def test_events_with_unreadable_times_are_skipped_with_their_line() -> None:
    content = make_ass(("0:00:01.00", "0:00:02.00", "", "Good."), ("soon", "0:00:03.00", "", "Lost.")) + "Dialogue: broken\n"
    found = parse_styled(content, Path("talk.ass"))
    assert [cue.text for cue in found.cues] == ["Good."]
    assert found.skipped == (
        "talk.ass:12: invalid times 'soon' and '0:00:03.00'",
        "talk.ass:13: expected start, end and text, found 'Dialogue: broken'",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD, "talk.ass has no lines `Dialogue: …` below"),
        ("just text", "talk.ass has no lines `Dialogue: …` below"),
        (HEAD.replace("Start, End, Style", "End, Start, Style"), "talk.ass:10: the fields of its events are layer, end, start"),
    ],
)
def test_other_events_are_refused(content: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_styled(content, Path("talk.ass"))
    assert str(caught.value).startswith(message)


PARAGRAPHS = (
    '<p begin="00:00:00.500" end="00:00:02.000">First<br/>line &amp; more</p><p begin="2.5s" end="4s"><span>Second</span></p>',
    'xmlns="http://www.w3.org/ns/ttml" xmlns:ttm="http://www.w3.org/ns/ttml#metadata"',
)
TTML = f'<?xml version="1.0" encoding="utf-8"?>\n<tt {PARAGRAPHS[1]}><body><div>{PARAGRAPHS[0]}</div></body></tt>'


def test_ttml() -> None:
    found = parse_styled(TTML, Path("talk.ttml"))
    assert list_cues(found) == [
        ("talk.ttml: cue 1", 0.5, 2.0, "First\nline & more", None),
        ("talk.ttml: cue 2", 2.5, 4.0, "Second", None),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f'<!DOCTYPE tt [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>{TTML[39:]}', "talk.dfxp declares a document type or entities"),
        (TTML[:-10], "talk.dfxp:2: not XML"),
        (TTML.replace("2.5s", "12f"), "talk.dfxp: Unsupported time expression: 12f; give the subtitles as .srt"),
        (TTML.replace("http://www.w3.org/ns/ttml", "http://www.w3.org/2006/10/ttaf1"), "talk.dfxp: pysubs2 reads 0 of its 2 paragraphs"),
        (TTML.replace("<p ", '<p ttm:agent="a" ', 1).replace("<p b", '<p ttm:agent="b" b'), "talk.dfxp: several speakers (a, b)"),
        ("<a>" * 20_000 + "</a>" * 20_000, "talk.dfxp: pysubs2 reads 0"),
        ("", "talk.dfxp:1: not XML"),
    ],
)
def test_other_ttml_is_refused(content: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_styled(content, Path("talk.dfxp"))
    assert str(caught.value).startswith(message)
