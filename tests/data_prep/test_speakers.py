"""Speakers that transcripts name."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.sources import Source
from data_prep.speakers import from_transcripts, require_one
from data_prep.transcripts import Transcript
from finetune.errors import UserError

SOURCES = [Source(Path(name), name, "", "folder") for name in ("a.wav", "b.wav", "c.wav")]
TEXTS = {"a.wav": Transcript(text="A.", speaker="Anna"), "b.wav": Transcript(text="B.", speaker="bob"), "c.wav": None}


def test_sources_take_the_names_that_their_transcripts_give() -> None:
    assert [source.speaker for source in from_transcripts(SOURCES, TEXTS)] == ["anna", "bob", "folder"]


def test_a_transcript_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"the transcript of b\.wav names no speaker"):
        from_transcripts(SOURCES, TEXTS | {"b.wav": Transcript(text="B.")})
    with pytest.raises(UserError, match="the transcript of every recording names no speaker"):
        from_transcripts(SOURCES, dict.fromkeys(TEXTS))


def test_several_names_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(UserError, match=r"name 2 speakers \(Anna, bob\); say --speaker-from transcript"):
        require_one(TEXTS)
    require_one({"a.wav": TEXTS["a.wav"], "c.wav": None})
