"""TextGrid files of Praat: both forms, which tier is used, and damaged files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from overtone.data_prep.recordings.textgrid import parse_textgrid, read_tiers
from overtone.finetune.errors import UserError

Intervals = Sequence[tuple[float, float, str]]
PHRASES = [(0.0, 0.5, ""), (0.5, 2.0, 'He said "no".'), (2.0, 2.5, ""), (2.5, 4.0, "Second one.")]
WORDS = [(0.5, 1.0, "he"), (1.0, 1.5, "said"), (1.5, 2.0, "no"), (2.0, 2.5, "<eps>"), (2.5, 3.0, "second"), (3.0, 4.0, "one")]
PHONES = [(0.5, 0.7, "HH"), (0.7, 1.0, "IY1"), (1.0, 1.2, "S"), (1.2, 1.5, "EH1"), (1.5, 1.6, "sil")]


def quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def make_long(**tiers: Intervals) -> str:
    limits = "xmin = 0 \nxmax = 4.5 \n"
    out = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n{limits}tiers? <exists> \nsize = {len(tiers) + 1} \nitem []: \n'
    out += f'item [1]:\nclass = "TextTier" \nname = "events" \n{limits}points: size = 1 \n'
    out += 'points [1]:\nnumber = 1e-05 \nmark = "click [2]: 7" \n'
    for at, (name, intervals) in enumerate(tiers.items(), start=2):
        out += (
            f'    item [{at}]:\n    class = "IntervalTier" \n    name = {quote(name)} \n{limits}    intervals: size = {len(intervals)} \n'
        )
        for number, (start, end, text) in enumerate(intervals, start=1):
            out += f"        intervals [{number}]:\n    xmin = {start} \n    xmax = {end} \n    text = {quote(text)} \n"
    return out


def make_short(**tiers: Intervals) -> str:
    out = f'File type = "ooTextFile short"\n"TextGrid"\n\n0\n4.5\n<exists>\n{len(tiers)}\n'.replace("ooTextFile short", "ooTextFile")
    for name, intervals in tiers.items():
        out += f'"IntervalTier"\n{quote(name)}\n0\n4.5\n{len(intervals)}\n'
        out += "".join(f"{start}\n{end}\n{quote(text)}\n" for start, end, text in intervals)
    return out.rstrip("\n")


@pytest.mark.parametrize("make", [make_long, make_short])
def test_both_forms_give_the_intervals_with_text(make) -> None:
    found = parse_textgrid(make(utterance=PHRASES), Path("a.TextGrid"))
    assert [(cue.start, cue.end, cue.text) for cue in found.cues] == [(0.5, 2.0, 'He said "no".'), (2.5, 4.0, "Second one.")]
    assert found.cues[1].place == "a.TextGrid: interval 4 of tier 'utterance'"
    assert (found.words, found.notes) == (False, ())


@pytest.mark.parametrize(
    ("tiers", "used", "words"),
    [
        ({"phones": PHONES, "words": WORDS, "utterances": PHRASES}, "utterances", False),
        ({"anna - words": WORDS, "anna - phones": PHONES}, "anna - words", True),
        ({"tier1": PHONES, "tier2": PHRASES}, "tier2", False),
        ({"tier1": PHONES, "tier2": WORDS}, "tier2", True),
        ({"ORT-MAU": WORDS, "KAN-MAU": PHONES, "MAU": PHONES}, "ORT-MAU", True),
        ({"text": PHRASES, "copy of the text": PHRASES, "notes": []}, "text", False),
        ({"発話": [(0.5, 2.0, "はい"), (2.0, 3.0, "だめ")], "phones": PHONES}, "発話", False),
    ],
)
def test_the_tier_with_the_text_is_chosen_and_named(tiers: dict[str, Intervals], used: str, words: bool) -> None:
    found = parse_textgrid(make_long(**tiers), Path("a.TextGrid"))
    assert found.words == words and all(repr(used) in cue.place for cue in found.cues)
    assert found.notes == (f"the tier {used!r} of {sum(bool(one) for one in tiers.values())} tiers with text is used",)
    assert not any(cue.text in ("", "<eps>", "sil") for cue in found.cues)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.TextGrid: it ends before the last"),
        ("hello", "a.TextGrid: it ends before the last"),
        ('"a" "b" 1 2', "a.TextGrid:1: expected a TextGrid of Praat"),
        (make_long(text=PHRASES)[:-40], "a.TextGrid: it ends before the last of its tiers"),
        (make_short(text=PHRASES)[:-20], "a.TextGrid: it ends before the last of its tiers"),
        (make_short(text=PHRASES).replace("\n4\n", "\n99999999999\n"), "a.TextGrid: it ends before the last of its tiers"),
        (make_long(phones=PHONES), "a.TextGrid has no tier with words or phrases (tiers with text: 'phones')"),
        (make_long(text=[(0.0, 4.5, "")]), "a.TextGrid has no tier with words or phrases (tiers with text: none)"),
        (make_long(Anna=PHRASES, Bob=[(0.0, 4.0, "Another one speaks.")]), "a.TextGrid: several tiers hold text ('Anna', 'Bob')"),
        ('"ooTextFile" "TextGrid" 0 1 <absent>', "a.TextGrid has no tier"),
    ],
)
def test_damaged_and_ambiguous_files_are_refused(content: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_textgrid(content, Path("a.TextGrid"))
    assert str(caught.value).startswith(message)


def test_times_keep_their_sign_and_exponent() -> None:
    tier = read_tiers(make_short(text=[(-1e-05, 2.5e-1, "a")]), Path("a.TextGrid"))[0]
    assert tier.intervals == ((1, -1e-05, 0.25, "a"),)
