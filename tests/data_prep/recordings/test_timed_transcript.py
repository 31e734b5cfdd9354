"""Transcripts with times: accepted forms, and messages about the others."""

from __future__ import annotations

import json

import pytest

from data_prep.recordings.subtitles import Cue, Cues
from data_prep.recordings.timed_transcript import convert_cues, parse_json
from finetune.errors import UserError

FIRST, SECOND = {"start": 0.5, "end": 2.0, "text": "First."}, {"start": 2.5, "end": 4, "text": "Second."}


def test_a_list_of_utterances_and_whisper_json_are_read() -> None:
    said = parse_json(json.dumps([FIRST, SECOND]), "talk.json")
    assert [(one.start, one.end, one.text) for one in said] == [(0.5, 2.0, "First."), (2.5, 4.0, "Second.")]
    whisper = {"text": "First. Second.", "segments": [FIRST | {"id": 0, "tokens": [1]}, SECOND], "language": "en"}
    assert parse_json(json.dumps(whisper), "talk.json") == said


def test_several_speakers_in_one_recording_are_refused() -> None:
    entries = [FIRST | {"speaker": "A"}, SECOND | {"speaker": "B"}]
    with pytest.raises(UserError, match=r"talk.json: several speakers \(A, B\) in one recording; split it"):
        parse_json(json.dumps(entries), "talk.json")
    assert len(parse_json(json.dumps([entry | {"speaker": "A"} for entry in entries]), "talk.json")) == 2


@pytest.mark.parametrize(
    ("cues", "message"),
    [
        ([], "a.srt has no utterance"),
        ([Cue(2, 1.0, 2.0, "a"), Cue(6, 3.0, 3.0, "b")], "a.srt:6: end 3.0 is not after start 3.0"),
        ([Cue(2, 2.0, 3.0, "a"), Cue(6, 1.0, 2.0, "b")], "a.srt:6: starts at 1.0, before the previous utterance"),
        ([Cue(2, 2.0, 3.0, "")], "a.srt:2: times without text"),
    ],
)
def test_impossible_times_are_refused_with_the_line(cues: list[Cue], message: str) -> None:
    with pytest.raises(UserError) as caught:
        convert_cues(Cues(tuple(cues), 0), "a.srt")
    assert str(caught.value).startswith(message)
