"""Which brackets and asterisks hold a sound, and which hold words."""

from __future__ import annotations

import pytest

from overtone.data_prep.recordings.sound_tags import (
    BRACKETS,
    KEPT,
    NOT_UNDERSTOOD,
    SOUND,
    STRESS,
    TIMESTAMP,
    TagDecision,
    classify,
    decide_tags,
    find_tags,
)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[music]", SOUND),
        ("So [phone rings] no.", SOUND),
        ("[DOOR SLAMS] Who is there?", SOUND),
        ("{breath} Well.", SOUND),
        ("(laughs) not at all", SOUND),
        ("Well (laughs), no.", SOUND),
        ("I know. (door creaks open) Who is there?", SOUND),
        ("(Door Slams)", SOUND),
        ("(SIREN WAILING) Run!", SOUND),
        ("そうですね（笑）。", SOUND),
        ("（ため息）はい", SOUND),
        ("(rires) Non.", SOUND),
        ("(se ríe) No.", SOUND),
        ("(смеётся) Нет.", SOUND),
        ("*sighs* well", SOUND),
        ("*laughs out loud*", SOUND),
        ("* coughs * Yes.", SOUND),
        ("/laughs/ Yes.", SOUND),
        ("~ humming ~", SOUND),
        ("(speaking softly) Yes.", SOUND),
        ("(…) Yes.", SOUND),
        ("I [inaudible] him.", NOT_UNDERSTOOD),
        ("[INAUDIBLE 00:12:30]", NOT_UNDERSTOOD),
        ("(unverständlich) Ja.", NOT_UNDERSTOOD),
        ("what the [ __ ]", NOT_UNDERSTOOD),
        ("[speaking Spanish]", NOT_UNDERSTOOD),
        ("(speaks in a foreign language)", NOT_UNDERSTOOD),
        ("[00:12:30] Yes.", TIMESTAMP),
        ("(0:12)", TIMESTAMP),
        ("[00:00:00.000 --> 00:00:02.000]  Yes.", TIMESTAMP),
        ("I was *really* tired.", STRESS),
        ("It is **never** late.", STRESS),
        ("I was _very_ tired.", STRESS),
        ("Your [temporary] greeting", BRACKETS),
        ("He walk[ed] home.", BRACKETS),
        ("Tom (my brother) came.", KEPT),
        ("Call me at noon (or so I hear).", KEPT),
        ("(They were cheap.) Yes.", KEPT),
        ("(1) First", KEPT),
        ("In Paris (France) it rains.", KEPT),
        ("東京（とうきょう）は大きい", KEPT),
    ],
)
def test_one_tag_in_a_line(line: str, kind: str) -> None:
    tags = find_tags(line)
    assert len(tags) == 1
    assert classify(line, tags[0], decide_tags([line])) == kind


@pytest.mark.parametrize(
    "line", ["5 * 3 * 2", "and/or/not", "1/2/3", "snake_case_name", "2 < 3", "a * b", "no tags", "* item", "()[ ".strip("[ ")]
)
def test_no_tags(line: str) -> None:
    assert [tag for tag in find_tags(line) if tag.content] == []


def test_a_remark_is_one_wherever_it_stands() -> None:
    line = "So (door creaks) who is it?"
    tag = find_tags(line)[0]
    assert classify(line, tag, TagDecision(frozenset())) == KEPT
    assert classify(line, tag, decide_tags([line, "(Door creaks)"])) == SOUND
    starred = "*door slams* What?"
    assert classify(starred, find_tags(starred)[0], decide_tags([starred])) == STRESS
    assert classify(starred, find_tags(starred)[0], decide_tags([starred, "*door slams* Again?"])) == SOUND
