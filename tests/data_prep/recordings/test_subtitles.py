"""Subtitles and label tracks: texts and times, as players read them, and what is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.recordings.subtitles import is_label_track, parse_clock, parse_labels, parse_subtitles
from overtone.data_prep.recordings.timed_cues import ParsedCues
from overtone.finetune.errors import UserError

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

REGION
id:fred

NOTE nobody
hears this

intro
00:01.000 --> 00:02.500 align:start position:0%
<v.loud Anna>Hello <00:00:01.500><c>there</c>, &lt;you&gt;.</v>

00:00:03.000 --> 00:00:04.000
[applause]

NOTE a remark
over two lines

00:00:05.000 --> 00:00:06.000
(laughs) Not at all.
"""
CUE = "00:01.000 --> 00:02.000\n"


def list_cues(parsed: ParsedCues) -> list[tuple[str, float, float, str]]:
    return [(cue.place, cue.start, cue.end, cue.text) for cue in parsed.cues]


def test_subrip_files_of_other_programs_are_read() -> None:
    assert list_cues(parse_subtitles(SRT, Path("talk.srt"))) == [
        ("talk.srt:2", 0.5, 2.0, "First <i>line</i>\nand {\\an8}second."),
        ("talk.srt:7", 3723.4, 3725.25, '<font color="#ff0000">Fish &amp; chips, 2 < 3</font>'),
        ("talk.srt:10", 3599.0, 3600.0, "- No number."),
    ]


def test_webvtt_without_notes_styles_and_regions() -> None:
    found = parse_subtitles(VTT, Path("talk.vtt"))
    assert list_cues(found) == [
        ("talk.vtt:14", 1.0, 2.5, "<v.loud Anna>Hello <00:00:01.500><c>there</c>, &lt;you&gt;.</v>"),
        ("talk.vtt:17", 3.0, 4.0, "[applause]"),
        ("talk.vtt:23", 5.0, 6.0, "(laughs) Not at all."),
    ]
    assert found.skipped == ()
    assert list_cues(parse_subtitles(VTT, Path("talk.srt")))[0][1:3] == (1.0, 2.5), "the first line says what it is, whatever the name"


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [
        ("00:00:01,1000", 2.0),
        ("00:00:01", 1.0),
        ("00:00:60,000", 60.0),
        ("00:61:01,5", 3661.5),
        ("00:00:01.25", 1.25),
        ("01:02", 62.0),
        ("-00:00:01,500", -1.5),
        ("00: 00: 01, 250", 1.25),
        ("00:00:01:500", 1.5),
        ("00:00:01,123456", 1.123456),
        ("100:00:00,000", 360_000.0),
    ],
)
def test_clocks_as_programs_write_them(clock: str, seconds: float) -> None:
    assert parse_clock(clock) == pytest.approx(seconds)
    found = parse_subtitles(f"1\n{clock} --> 200:00:00,000\nHi.\n", Path("a.srt"))
    assert [cue.start for cue in found.cues] == [pytest.approx(seconds)]


@pytest.mark.parametrize("arrow", ["-->", " --> ", "->", "--->", "→", "–>", "—>", " --&gt; ", "-- >"])
def test_arrows_as_editors_change_them(arrow: str) -> None:
    assert len(parse_subtitles(f"1\n00:00:01,000{arrow}00:00:02,000\nHi.\n", Path("a.srt")).cues) == 1


FIRST, SECOND, THIRD = (f"{n}\n00:00:0{n},000 --> 00:00:0{n + 1},000\n" for n in (1, 2, 3))


@pytest.mark.parametrize("line", ["\u200e{}", "\u202b{}\u202c", "\ufeff{}"])
def test_times_and_numbers_between_directional_marks(line: str) -> None:
    text = "\n".join(line.format(each) if "Hi" not in each else each for each in ("1", "00:00:01,000 --> 00:00:02,000", "Hi.\u200f", ""))
    assert list_cues(parse_subtitles(f"{text}\n{text}", Path("a.srt"))) == [
        ("a.srt:2", 1.0, 2.0, "Hi.\u200f"),
        ("a.srt:6", 1.0, 2.0, "Hi.\u200f"),
    ]
    assert len(parse_subtitles("1\n00：00：01，000 --> 00：00：02，000\nHi.\n", Path("a.srt")).cues) == 1


def test_a_text_in_the_line_of_its_times_is_read() -> None:
    text = "00:00:01,000 --> 00:00:02,000 Hi there.\n00:00:03,000 --> 00:00:04,000  X1:0 X2:10\nBye.\n"
    assert [cue.text for cue in parse_subtitles(text, Path("a.srt")).cues] == ["Hi there.", "Bye."]


def test_blank_lines_between_all_lines() -> None:
    text = f"{FIRST}One.\n\n{SECOND}Two.\n\n{THIRD}Three.\n".replace("\n", "\n\n")
    found = parse_subtitles(text, Path("a.srt"))
    assert ([cue.text for cue in found.cues], found.skipped) == (["One.", "Two.", "Three."], ())


def test_cues_without_blank_lines_between_them() -> None:
    found = parse_subtitles(f"{FIRST}One.\n{SECOND}In 1984\n1984\n{THIRD}Three.\n", Path("a.srt"))
    assert [cue.text for cue in found.cues] == ["One.", "In 1984\n1984", "Three."]
    bare = "00:00:01,000 --> 00:00:02,000\n42\n00:00:02,000 --> 00:00:03,000\nTwo.\n"
    assert [cue.text for cue in parse_subtitles(bare, Path("a.srt")).cues] == ["42", "Two."], "no cue of the file has a number"


def test_blank_lines_inside_a_text_and_cues_without_text() -> None:
    found = parse_subtitles(f"{FIRST}One,\n\nstill one.\n\n{SECOND}\n{THIRD}Three.\n", Path("a.srt"))
    assert ([cue.text for cue in found.cues], found.skipped) == (["One,\nstill one.", "Three."], ())


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (f"{CUE}Hi.\n\n2\n00:00:xx,000 --> 00:00:03,000\nLost.\n\n3\n00:00:05,000 --> 00:00:06,000\nBye.\n", "a.srt:5", "invalid times"),
        (f"{CUE}Hi.\n\n2\nLost.\n\n3\n00:00:05,000 --> 00:00:06,000\nBye.\n", "a.srt:4", "text without times"),
        (f"Lost at the start.\nAnd more.\n\n{CUE}Hi.\n\n{CUE}Bye.\n", "a.srt:1", "expected a cue"),
    ],
)
def test_a_cue_without_readable_times_is_skipped_with_its_place(text: str, place: str, problem: str) -> None:
    found = parse_subtitles(text, Path("a.srt"))
    assert [cue.text for cue in found.cues] == ["Hi.", "Bye."]
    assert len(found.skipped) == 1 and found.skipped[0].startswith(f"{place}: {problem}")


def test_text_without_times_in_webvtt_is_skipped() -> None:
    found = parse_subtitles(f"WEBVTT\n\nWhat is this?\n\n{CUE}Hi.\n\nnor this\n", Path("a.vtt"))
    assert [cue.text for cue in found.cues] == ["Hi."]
    assert [one.partition(": ")[0] for one in found.skipped] == ["a.vtt:3", "a.vtt:8"]


@pytest.mark.parametrize("text", [CUE + "Hi.", ""])
def test_webvtt_without_its_header_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"a\.vtt:1: a WebVTT file starts with WEBVTT"):
        parse_subtitles(text, Path("a.vtt"))


def test_subtitles_of_youtube() -> None:
    found = parse_subtitles("0:00:01.000,0:00:02.500\nOne\nline\n\n0:00:03.000,0:00:04.000\nTwo\n", Path("a.sbv"))
    assert list_cues(found) == [("a.sbv:1", 1.0, 2.5, "One\nline"), ("a.sbv:5", 3.0, 4.0, "Two")]


AUDACITY = "0.500000\t2.000000\tFirst.\n\\\t100.0\t2000.0\n\n2.500000\t4.000000\tSecond one.\n4,5\t6,0\tThird.\n7.0\t8.0\t\n"
HTK = "0 5000000 first\n5000000 12000000 second word\n"


def test_label_tracks() -> None:
    assert is_label_track(AUDACITY) and is_label_track(HTK) and is_label_track("0\t2\tWhole seconds.")
    assert list_cues(parse_labels(AUDACITY, Path("a.txt"))) == [
        ("a.txt:1", 0.5, 2.0, "First."),
        ("a.txt:4", 2.5, 4.0, "Second one."),
        ("a.txt:5", 4.5, 6.0, "Third."),
    ]
    assert list_cues(parse_labels(HTK, Path("a.lab"))) == [("a.lab:1", 0.0, 0.5, "first"), ("a.lab:2", 0.5, 1.2, "second word")]
    assert list_cues(parse_labels("0\t2\tWhole seconds.", Path("a.lab"))) == [("a.lab:1", 0.0, 2.0, "Whole seconds.")]


@pytest.mark.parametrize("text", ["", "Plain.", "3 4 cabbages and kings", "1984 2001 are years", "0.5 2.0 Spaces only.", "1\t2"])
def test_a_plain_text_is_no_label_track(text: str) -> None:
    assert not is_label_track(text)


def test_broken_labels_name_their_line() -> None:
    found = parse_labels("0.5\t2.0\tFirst.\nAnd this?", Path("a.lab"))
    assert len(found.cues) == 1 and found.skipped[0].startswith("a.lab:2: expected start, end and text with tabs")
    with pytest.raises(UserError, match="a.lab:1: 'sil' labels a phone or silence"):
        parse_labels("0 5000000 sil\n", Path("a.lab"))


def clock(milliseconds: int) -> str:
    return f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02},{milliseconds % 1000:03}"


SAID = st.text(st.characters(codec="utf-8", categories=("L",)), min_size=1, max_size=30)


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 10**5), SAID), min_size=1, max_size=20), st.sampled_from(["\n\n", "\n"]))
def test_generated_subtitles_are_read_back(cues: list[tuple[int, int, str]], between: str) -> None:
    text = between.join(f"{n}\n{clock(start)} --> {clock(start + long)}\n{said}" for n, (start, long, said) in enumerate(cues, start=1))
    found = parse_subtitles(text, Path("a.srt")).cues
    assert [(round(cue.start * 1000), round(cue.end * 1000), cue.text) for cue in found] == [(s, s + long, said) for s, long, said in cues]


@given(st.text(st.sampled_from("WEBVT10:.,-> \n\t<v>{\\}[♪#&;a"), max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for read, name in ((parse_subtitles, "a.srt"), (parse_subtitles, "a.vtt"), (parse_subtitles, "a.sbv"), (parse_labels, "a.lab")):
        try:
            read(text, Path(name))
        except UserError as error:
            assert str(error).startswith(f"{name}:")
