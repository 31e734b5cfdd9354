"""Utterances of cues: their order, their times, one speaker, and what is left out."""

from __future__ import annotations

import pytest

from overtone.data_prep.recordings.removed_text import RemovedText
from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues
from overtone.data_prep.recordings.timed_transcript import TimedTranscript, make_transcript
from overtone.finetune.errors import UserError


def make(*cues: tuple[float, float, str], skipped: tuple[str, ...] = (), speakers: str = "") -> tuple[TimedTranscript, dict[str, int]]:
    removed = RemovedText()
    named = [Cue(f"a.srt:{line}", *cue, speakers[line - 1 : line] or None) for line, cue in enumerate(cues, start=1)]
    return make_transcript(ParsedCues(tuple(named), skipped), "a.srt", removed), dict(removed.counts)


def list_utterances(made: TimedTranscript) -> list[tuple[float, float, str]]:
    return [(one.start, one.end, one.text) for one in made.utterances]


def test_unsorted_cues_are_sorted_and_reported() -> None:
    made, _ = make((3.0, 4.0, "b"), (1.0, 2.0, "a"))
    assert list_utterances(made) == [(1.0, 2.0, "a"), (3.0, 4.0, "b")]
    assert made.notes == ("its cues are not in the order of their times, and were sorted",)


def test_a_cue_without_duration_lasts_as_long_as_its_text() -> None:
    made, _ = make((1.0, 1.0, "abcde"), (1.2, 2.0, "next"), (3.0, 3.0, "abcde"))
    assert list_utterances(made) == [(1.0, 1.2, "abcde"), (1.2, 2.0, "next"), (3.0, pytest.approx(3.6), "abcde")]
    assert made.notes == ("2 cues of no duration: read as long as its text takes",)


def test_impossible_times_are_skipped_with_their_place() -> None:
    made, _ = make((1.0, 2.0, "a"), (5.0, 3.0, "b"), (-0.5, 0.5, "c"), *((float(t), t + 0.5, "d") for t in range(6, 10)))
    assert [one.text for one in made.utterances] == ["c", "a", "d", "d", "d", "d"]
    assert made.utterances[0].start == 0.0
    assert made.notes[0] == "1 cue skipped: a.srt:2: end 3.0 is not after start 5.0"


def test_many_unusable_cues_refuse_the_file() -> None:
    good = tuple((float(t), t + 0.5, f"d{t}") for t in range(8))
    assert len(make(*good, skipped=("a.srt:90: x", "a.srt:91: y"))[0].utterances) == 8, "a fifth of ten"
    with pytest.raises(UserError, match=r"^a.srt: 3 of its 11 cues cannot be used; correct them: a.srt:90: x; a.srt:91: y; a.srt:92: z$"):
        make(*good, skipped=("a.srt:90: x", "a.srt:91: y", "a.srt:92: z"))
    with pytest.raises(UserError, match=r"^a.srt: 1 of its 1 cue cannot be used"):
        make((3.0, 1.0, "a"))


def test_several_speakers_are_refused_however_they_are_named() -> None:
    with pytest.raises(
        UserError, match=r"a.srt: several speakers \(A, B\) in one recording; split it by speaker first \('B' speaks at a.srt:2\)"
    ):
        make((0.0, 1.0, "a"), (1.0, 2.0, "b"), speakers="AB")
    with pytest.raises(UserError, match=r"several speakers \(SPEAKER_00, SPEAKER_01\) in one recording"):
        make((0.0, 1.0, "[SPEAKER_00]: a"), (1.0, 2.0, "[SPEAKER_01]: b"))
    made, _ = make((0.0, 1.0, "Anna: a"), (1.0, 2.0, "ANNA: b"), speakers="")
    assert (made.speaker, [one.text for one in made.utterances]) == ("Anna", ["a", "b"])
    assert make((0.0, 1.0, "[SPEAKER_00] a"))[0].speaker is None, "another person in each recording"


def test_what_is_not_spoken_leaves_no_utterance_and_is_counted() -> None:
    made, counts = make((0.0, 1.0, "[music]"), (1.0, 2.0, "I saw [inaudible] there."), (2.0, 3.0, "Yes."), (2.0, 3.0, "Yes."))
    assert list_utterances(made) == [(2.0, 3.0, "Yes.")]
    assert counts == {
        "sound and mood tags": 1,
        "marks of words that nobody understood": 1,
        "texts without speech": 1,
        "texts that lack words that somebody speaks": 1,
        "cues that repeat the cue before": 1,
    }
    with pytest.raises(UserError, match="a.srt has no utterances: nobody speaks in its 1 cue"):
        make((0.0, 1.0, "[music]"))
