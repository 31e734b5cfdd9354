"""Timed transcripts as JSON and TSV of other programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overtone.data_prep.recordings.transcript_json import parse_json, parse_tsv
from overtone.finetune.errors import UserError

FIRST, SECOND = {"start": 0.5, "end": 2.0, "text": "First."}, {"start": 2.5, "end": 4, "text": " Second."}
WHISPER_CPP = {
    "systeminfo": "AVX = 1",
    "params": {"model": "models/ggml-base.en.bin", "language": "en"},
    "result": {"language": "en"},
    "transcription": [
        {
            "timestamps": {"from": "00:00:00,500", "to": "00:00:02,000"},
            "offsets": {"from": 500, "to": 2000},
            "text": " First.",
            "tokens": [],
        },
        {"timestamps": {"from": "00:00:02,500", "to": "00:00:04,000"}, "offsets": {"from": 2500, "to": 4000}, "text": " Second."},
    ],
}
FORMS: dict[str, Any] = {
    "ours": [FIRST, SECOND],
    "whisper": {"text": "First. Second.", "segments": [FIRST | {"id": 0, "tokens": [1]}, SECOND], "language": "en"},
    "whisper.cpp": WHISPER_CPP,
    "transformers": {"text": "…", "chunks": [{"timestamp": [0.5, 2.0], "text": " First."}, {"timestamp": [2.5, 4.0], "text": " Second."}]},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_json_of_each_program_gives_the_same_cues(form: str) -> None:
    found = parse_json(json.dumps(FORMS[form]), "talk.json")
    assert [(cue.start, cue.end, cue.text) for cue in found.cues] == [(0.5, 2.0, "First."), (2.5, 4.0, "Second.")]
    assert found.skipped == ()


def test_speakers_of_whisperx_and_an_open_end() -> None:
    found = parse_json(json.dumps({"segments": [FIRST | {"speaker": "SPEAKER_00"}, SECOND | {"speaker": 1}]}), "talk.json")
    assert [cue.speaker for cue in found.cues] == ["SPEAKER_00", "1"]
    last = parse_json(json.dumps({"chunks": [{"timestamp": [1.5, None], "text": "Last."}]}), "talk.json").cues[0]
    assert (last.start, last.end) == (1.5, 1.5), "the utterance lasts as long as its text"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"start": 0, "end": 1}, "talk.json: 1.text: expected a text, found None"),
        ({"end": 1, "text": "a"}, "talk.json: 1.start: expected seconds from 0, found None"),
        ({"start": -1, "end": 1, "text": "a"}, "talk.json: 1.start: expected seconds from 0, found -1"),
        ({"start": 0, "end": 10**400, "text": "a"}, "talk.json: 1.end: expected seconds from 0, found 1"),
        ({"start": 0, "text": "a"}, "talk.json: 1.end: expected seconds from 0, found nan"),
        ({"offsets": {"from": 1}, "text": "a"}, "talk.json: 1.end"),
        ({"start": True, "end": 1, "text": "a"}, "talk.json: 1.start"),
        ("a", "talk.json: 1: expected an object, found str"),
    ],
)
def test_an_unusable_entry_is_skipped_with_its_place(entry: object, problem: str) -> None:
    found = parse_json(json.dumps([FIRST, entry]), "talk.json")
    assert len(found.cues) == 1 and len(found.skipped) == 1 and found.skipped[0].startswith(problem)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[{]", "talk.json:1: not JSON"),
        ('{"results": [], "status": "done"}', "talk.json: top level: found an object with the keys 'results', 'status'; expected"),
        ("3", "talk.json: top level: found int; expected"),
        ('[{"start": NaN}]', "talk.json: unusable JSON"),
        ('{"segments": []}', "talk.json has no utterances"),
    ],
)
def test_other_json_is_refused_with_the_forms_that_are_read(content: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_json(content, "talk.json")
    assert str(caught.value).startswith(message)


def test_a_line_of_whispers_tsv_without_times_is_skipped() -> None:
    found = parse_tsv("start\tend\ttext\n500\t2000\tFirst.\n0.5\t2000\tBad.\n2500\t4000\t \n", "talk.tsv")
    assert [(cue.place, cue.start, cue.end, cue.text) for cue in found.cues] == [("talk.tsv:2", 0.5, 2.0, "First.")]
    assert found.skipped == ("talk.tsv:3: expected start and end in milliseconds and a text, found '0.5 2000 Bad.'",)
    with pytest.raises(UserError, match="talk.tsv:1: expected the columns"):
        parse_tsv("name\ttext\n", "talk.tsv")


def test_whole_numbers_that_are_too_long_for_seconds_are_milliseconds() -> None:
    cues = '[{"start": 0, "end": 2300, "text": "The first sentence."}, {"start": 2600, "end": 3000, "text": "Yes."}]'
    for content in (cues, f'{{"utterances": {cues}}}'):
        found = parse_json(content, "a.json")
        assert [(cue.start, cue.end) for cue in found.cues] == [(0.0, 2.3), (2.6, 3.0)] and found.notes == ("its times are milliseconds",)
    seconds = parse_json(
        '[{"start": 0, "end": 30, "text": "A sentence in a long pause."}, {"start": 2600, "end": 2610, "text": "Yes."}]', "a.json"
    )
    assert [cue.end for cue in seconds.cues] == [30.0, 2610.0] and seconds.notes == ()
