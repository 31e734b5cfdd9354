"""Subtitles and label tracks: texts and times, and messages about broken files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.recordings.subtitles import Cue, is_label_track, parse_labels, parse_subtitles
from finetune.errors import UserError

SRT = """1
00:00:00,500 --> 00:00:02,000
First <i>line</i>
and {\\an8}second.

2
01:02:03.4 --> 1:02:05,25  X1:0 X2:10
<font color="#ff0000">Fish &amp; chips, 2 < 3</font>

00:59:59,000 --> 01:00:00,000
- No number.
"""
VTT = """WEBVTT - made by hand
Kind: captions

STYLE
::cue { color: red }

NOTE nobody
hears this

intro
00:01.000 --> 00:02.500 align:start position:0%
<v.loud Anna>Hello <00:00:01.500><c>there</c>, &lt;you&gt;.</v>

00:00:03.000 --> 00:00:04.000
[applause]

00:00:04.000 --> 00:00:05.000
♪ la la ♪

00:00:05.000 --> 00:00:06.000
(laughs) Not at all.
"""


def test_subrip_files_of_other_programs_are_read() -> None:
    assert parse_subtitles(SRT, Path("talk.srt")).spoken == (
        Cue(2, 0.5, 2.0, "First line and second."),
        Cue(7, 3723.4, 3725.25, "Fish & chips, 2 < 3"),
        Cue(10, 3599.0, 3600.0, "- No number."),
    )


def test_webvtt_without_notes_styles_and_sounds() -> None:
    found = parse_subtitles(VTT, Path("talk.vtt"))
    assert found.spoken == (Cue(11, 1.0, 2.5, "Hello there, <you>."), Cue(20, 5.0, 6.0, "(laughs) Not at all."))
    assert found.sounds == 2


CUE = "00:01.000 --> 00:02.000\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.vtt", CUE + "Hi.", "a.vtt:1: a WebVTT file starts with WEBVTT"),
        ("a.vtt", "", "a.vtt:1: a WebVTT file starts with WEBVTT"),
        ("a.vtt", "WEBVTT\n\nWhat is this?", "a.vtt:3: expected a cue"),
        ("a.srt", "1\n00:00:01 --> 00:00:02\nHi.", "a.srt:2: invalid times"),
        ("a.srt", "1\n00:61:01,000 --> 00:62:02,000\nHi.", "a.srt:2: invalid times"),
        ("a.srt", f"1\n{CUE}Hi.\n2\n{CUE}Again.", "a.srt:5: times inside the text of another cue"),
        ("a.srt", f"{CUE}<v Anna>Hi.\n\n{CUE}<v Bob>Hello.", "a.srt:4: 'Bob' speaks after 'Anna'"),
    ],
)
def test_broken_subtitles_are_refused_with_the_line(name: str, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_subtitles(text, Path(name))
    assert str(caught.value).startswith(message)


def test_a_repeated_sentence_is_no_rolling_caption() -> None:
    assert len(parse_subtitles(f"{CUE}Yes.\n\n{CUE}Yes.\n\n{CUE}No.\n\n{CUE}Well.\n", Path("a.srt")).spoken) == 4


AUDACITY = "0.500000\t2.000000\tFirst.\n\\\t100.0\t2000.0\n\n2.500000\t4.000000\tSecond one.\n"
HTK = "0 5000000 first\n5000000 12000000 second word\n"


def test_label_tracks() -> None:
    assert is_label_track(AUDACITY) and is_label_track(HTK) and is_label_track("0\t2\tWhole seconds.")
    assert parse_labels(AUDACITY, Path("a.txt")).spoken == (Cue(1, 0.5, 2.0, "First."), Cue(4, 2.5, 4.0, "Second one."))
    assert parse_labels(HTK, Path("a.lab")).spoken == (Cue(1, 0.0, 0.5, "first"), Cue(2, 0.5, 1.2, "second word"))
    assert parse_labels("0\t2\tWhole seconds.", Path("a.lab")).spoken == (Cue(1, 0.0, 2.0, "Whole seconds."),)


@pytest.mark.parametrize("text", ["", "Plain.", "3 4 cabbages and kings", "1984 2001 are years", "0.5 2.0 Spaces only.", "1\t2"])
def test_a_plain_text_is_no_label_track(text: str) -> None:
    assert not is_label_track(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5\t2.0\tFirst.\nAnd this?", "a.lab:2: expected start, end and text with tabs"),
        ("0 5000000 sil\n", "a.lab:1: 'sil' labels a phone or silence"),
    ],
)
def test_broken_labels_are_refused_with_the_line(text: str, message: str) -> None:
    assert is_label_track(text)
    with pytest.raises(UserError) as caught:
        parse_labels(text, Path("a.lab"))
    assert str(caught.value).startswith(message)


def clock(milliseconds: int) -> str:
    return f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02},{milliseconds % 1000:03}"


SAID = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=30)


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**5), SAID), min_size=1, max_size=20, unique_by=lambda cue: cue[2]))
def test_generated_subtitles_are_read_back(cues: list[tuple[int, int, str]]) -> None:
    text = "\n\n".join(f"{n}\n{clock(start)} --> {clock(start + long)}\n{said}" for n, (start, long, said) in enumerate(cues, start=1))
    found = parse_subtitles(text, Path("a.srt")).spoken
    assert [(round(cue.start * 1000), round(cue.end * 1000), cue.text) for cue in found] == [(s, s + long, said) for s, long, said in cues]


@given(st.text(st.sampled_from("WEBVT10:.,-> \n\t<v>{\\}[♪#&;a"), max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for read, name in ((parse_subtitles, "a.srt"), (parse_subtitles, "a.vtt"), (parse_labels, "a.lab")):
        try:
            read(text, Path(name))
        except UserError as error:
            assert str(error).startswith(f"{name}:")


def test_marks_of_a_new_speaker_are_counted_and_left_out_with_the_name() -> None:
    text = (
        "1\n00:00:00,000 --> 00:00:01,000\n&gt;&gt; DR. ÉMILE O'HARA: Good day.\n\n2\n00:00:01,000 --> 00:00:02,000\n>> Listen: no\n>>yes\n"
    )
    found = parse_subtitles(text, Path("a.srt"))
    assert ([cue.text for cue in found.spoken], found.changes) == (["Good day.", "Listen: no yes"], 3)
