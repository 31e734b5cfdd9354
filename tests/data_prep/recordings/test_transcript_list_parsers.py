"""Lists of GPT-SoVITS and LibriSpeech."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.transcript_list_parsers import is_transcript_list, parse_list
from overtone.finetune.errors import UserError


def test_gpt_sovits() -> None:
    assert (
        is_transcript_list(Path("slicer_opt.list")) and is_transcript_list(Path("1-2.trans.txt")) and not is_transcript_list(Path("a.txt"))
    )
    content = "output\\slicer_opt\\a.wav|anna|ZH|你好。\n\n/home/x/b.wav|anna|EN|Yes | no.\n"
    found = [(name, line.line, line.speaker, line.language, line.text) for name, line in parse_list(Path("a.list"), content)]
    assert found == [("output/slicer_opt/a.wav", 1, "anna", "ZH", "你好。"), ("/home/x/b.wav", 3, "anna", "EN", "Yes | no.")]
    with pytest.raises(UserError, match=r"a.list:1: expected path\|speaker\|language\|text, found 'a.wav\|text'"):
        list(parse_list(Path("a.list"), "a.wav|text"))


def test_librispeech() -> None:
    ((name, line),) = parse_list(Path("1089-134686.trans.txt"), "1089-134686-0000 HE HOPED THERE WOULD BE STEW\n")
    assert (name, line.text, line.speaker) == ("1089-134686-0000", "HE HOPED THERE WOULD BE STEW", "1089")
    ((name, line),) = parse_list(Path("1089-134686.trans.txt"), "1089-134686-0000\tHE HOPED  SO\n")
    assert (name, line.text, line.speaker) == ("1089-134686-0000", "HE HOPED  SO", "1089")
    with pytest.raises(UserError, match="a.trans.txt:2: expected an id and its text"):
        list(parse_list(Path("a.trans.txt"), "a b\nc\n"))
