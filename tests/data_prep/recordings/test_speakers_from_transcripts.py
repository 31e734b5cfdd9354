"""Speakers that transcripts name."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.speakers_from_transcripts import assign_speakers, require_one_speaker
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.finetune.errors import UserError

SOURCES = [RecordingSource(Path(name), name, "", "folder") for name in ("a.wav", "b.wav", "c.wav")]
TEXTS = {"a.wav": UserTranscript(text="A.", speaker="Anna"), "b.wav": UserTranscript(text="B.", speaker="bob"), "c.wav": None}


def test_sources_take_the_speakers_of_their_transcripts() -> None:
    assert [source.speaker for source in assign_speakers(SOURCES, TEXTS)] == ["anna", "bob", "folder"]


def test_a_transcript_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"the transcript of b\.wav names no speaker"):
        assign_speakers(SOURCES, TEXTS | {"b.wav": UserTranscript(text="B.")})
    with pytest.raises(UserError, match="the transcript of every recording names no speaker"):
        assign_speakers(SOURCES, dict.fromkeys(TEXTS))


def test_several_speakers_are_refused_unless_transcripts_name_them() -> None:
    with pytest.raises(UserError, match=r"name 2 speakers \(Anna, bob\); use --speaker-from transcript"):
        require_one_speaker(TEXTS)
    assert require_one_speaker({"a.wav": TEXTS["a.wav"], "c.wav": None}) == "Anna"
    assert require_one_speaker({"c.wav": None}) is None
