"""Selection of measured clips by rules, usual pace and review decisions."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.extraction import MeasuredClip
from overtone.data_prep.clips.fingerprints import compute_fingerprint
from overtone.data_prep.clips.quality_rules import PRESETS
from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.manifest import Quality
from overtone.data_prep.pipeline import clip_selection
from overtone.data_prep.pipeline.clip_selection import SelectionCriteria
from overtone.data_prep.pipeline.recording_results import PreparedRecording, refuse_recording
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.data_prep.speakers.voice_clusters import VoiceCount
from overtone.data_prep.speakers.windowed_speaker_vectors import VoiceWindows
from tests.data_prep.speakers.test_voice_clusters import windows_of

QUALITY = Quality(
    chars_per_second=12.0,
    speech_share=0.8,
    peak_dbfs=-3.0,
    clipped_share=0.0,
    snr_db=40.0,
    edge_energy_db=(-40.0, -40.0),
    avg_logprob=-0.2,
    compression_ratio=1.3,
    no_speech_prob=0.01,
    text_complete=True,
)
TEXT = "A sentence of some length that takes five seconds."
STANDARD = SelectionCriteria(PRESETS["default"], Lengths())


def clip(number: int = 0, text: str = TEXT, **measures: object) -> MeasuredClip:
    start = number * 6 * MASTER_RATE
    identity = f"aa_{number}"
    audio = f"clips/aa/{identity}.flac" if text else None
    quality = QUALITY.model_copy(update=measures)
    return MeasuredClip(
        id=identity, audio=audio, start=start, stop=start + 5 * MASTER_RATE, text=text, language="english", quality=quality, gain_db=1.5
    )


def recording(*clips: MeasuredClip, speaker: str = "me") -> PreparedRecording:
    return PreparedRecording(RecordingSource(Path("a.wav"), "a.wav", "aa", speaker), 600 * MASTER_RATE, clips=clips)


def reasons(clips: list[MeasuredClip], *decisions: Decision, standard: SelectionCriteria = STANDARD) -> list[tuple[str, ...]]:
    standard = replace(standard, decisions={decision.id: decision for decision in decisions})
    return [one.reasons for one in clip_selection.apply_rules([recording(*clips)], standard)]


def test_rules_of_the_preset_decide_and_all_reasons_are_kept() -> None:
    clips = [clip(0), clip(1, snr_db=17.0), clip(2, snr_db=3.0, clipped_share=0.5)]
    assert reasons(clips) == [(), (), ("clipped", "noisy")]
    assert reasons(clips, standard=SelectionCriteria(PRESETS["clean"], Lengths())) == [(), ("noisy",), ("clipped", "noisy")]
    assert reasons(clips, standard=SelectionCriteria(PRESETS["keep-all"], Lengths())) == [(), (), ()]
    assert reasons(clips, standard=SelectionCriteria(PRESETS["keep-all"], Lengths(longest=4.0)))[0] == ("too_long",)


def test_the_usual_pace_of_a_speaker_comes_from_all_their_recordings() -> None:
    steady = [clip(number, chars_per_second=12.0 + number % 3) for number in range(12)]
    hasty = clip(12, chars_per_second=24.0)
    assert reasons([hasty]) == [()]
    judged = clip_selection.apply_rules([recording(*steady), recording(hasty)], STANDARD)
    assert [one.reasons for one in judged] == [()] * 12 + [("too_fast",)]
    judged = clip_selection.apply_rules([recording(*steady), recording(hasty, speaker="somebody else")], STANDARD)
    assert not any(one.reasons for one in judged)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Decision(id="aa_0", action="keep"), ()),
        (Decision(id="aa_0", action="reject"), ("review",)),
        (Decision(id="aa_0", action="text", text=TEXT), ("noisy",)),  # a typed text does not make the room quieter
        (Decision(id="other", action="keep"), ("unsure_text", "noisy")),
    ],
)
def test_review_decisions_override_the_rules(decision, expected) -> None:
    assert reasons([clip(snr_db=3.0, avg_logprob=-2.0)], decision) == [expected]


def test_a_corrected_text_replaces_the_transcript_and_is_checked_again() -> None:
    heard = clip(text="Thanks for watching!", avg_logprob=-2.0, repeated_share=0.9, language_prob=0.1, outside_speech_share=0.5)
    assert reasons([heard]) != [()]
    (judged,) = clip_selection.apply_rules(
        [recording(heard)], replace(STANDARD, decisions={"aa_0": Decision(id="aa_0", action="text", text=TEXT)})
    )
    assert (judged.clip.text, judged.reasons) == (TEXT, ())
    assert judged.clip.quality.chars_per_second == pytest.approx(len(TEXT) / 4.0, abs=0.01)  # speech is 0.8 of 5 s
    assert judged.clip.quality.avg_logprob is None
    assert judged.clip.quality.snr_db == 40.0
    assert reasons([heard], Decision(id="aa_0", action="text", text="No.")) == [("too_slow",)]


def test_a_clip_without_text_has_no_file_and_cannot_be_kept() -> None:
    silent = clip(text="")
    assert "no_text" in reasons([silent], Decision(id="aa_0", action="keep"))[0]
    assert clip_selection.find_stale_decisions(
        [recording(silent, clip(1))], {name: Decision(id=name, action="keep") for name in ("aa_0", "aa_1", "x")}
    ) == [
        "aa_0",
        "x",
    ]


def test_rows_and_rejects_name_their_source_and_clip() -> None:
    recordings = [
        recording(clip(0), clip(1, snr_db=3.0)),
        refuse_recording(RecordingSource(Path("b.wav"), "b.wav", "bb", "me"), "nan", "at 0.1 s", 48_000),
    ]
    judged = clip_selection.apply_rules(recordings, STANDARD)
    (row,) = clip_selection.make_rows(judged)
    assert row.gain_db == 1.5
    assert (row.id, row.audio, row.text, row.speaker, row.duration, row.start, row.end) == (
        "aa_0",
        "clips/aa/aa_0.flac",
        TEXT,
        "me",
        5,
        0,
        5,
    )
    of_clip, whole = clip_selection.make_rejects(judged, recordings)
    assert (of_clip.id, of_clip.audio, of_clip.reasons, of_clip.stage) == ("aa_1", "clips/aa/aa_1.flac", ["noisy"], "clip")
    assert (of_clip.text, of_clip.quality.snr_db, of_clip.start, of_clip.end) == (TEXT, 3.0, 6, 11)
    assert (whole.source, whole.stage, whole.reasons, whole.detail, whole.end) == ("b.wav", "recording", ["nan"], "at 0.1 s", 2)


def test_a_duplicate_is_rejected_unless_a_person_keeps_it(tmp_path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 5 * MASTER_RATE)).astype(np.float32)
    first, other = (base64.b64encode(compute_fingerprint(one, 0, len(one)).astype("<u4").tobytes()) for one in noise)
    clips = [clip(0), clip(1), clip(2, text="Something else that is said."), clip(3, snr_db=3.0)]
    # frames lie on a grid of 32 ms, so 6 s apart the same sound has the same words
    heard = [
        MeasuredClip.model_validate(one.model_dump() | {"fingerprint": words})
        for one, words in zip(clips, (first, first, other, first), strict=True)
    ]
    judged = clip_selection.judge_clips([recording(*heard)], STANDARD, tmp_path)
    assert [one.reasons for one in judged] == [(), ("duplicate",), (), ("noisy",)]
    assert clip_selection.make_rejects(judged, [])[0].detail == "the same sound as aa_0 of a.wav, which is kept"
    wanted = replace(STANDARD, decisions={"aa_1": Decision(id="aa_1", action="keep")})
    judged = clip_selection.judge_clips([recording(*heard)], wanted, tmp_path)
    assert [one.reasons for one in judged] == [("duplicate",), (), (), ("noisy",)]


def test_doubts_about_a_transcript_reject_its_clips_unless_a_person_decided() -> None:
    """Twenty texts whose lengths have nothing to do with the speech under them."""
    clips = [clip(number, text=f"{number} " + "word " * (1 + 5 * (number % 4))) for number in range(20)]
    lenient = SelectionCriteria(PRESETS["keep-all"], Lengths(), trusts_texts=True)
    assert all("misfit_text" in one for one in reasons(clips))
    assert not any("misfit_text" in one for one in reasons(clips[:19])), "too few to tell"
    assert not any(reasons(clips, standard=lenient))
    decided = reasons(clips, Decision(id="aa_1", action="keep"), Decision(id="aa_2", action="text", text=TEXT))
    assert "misfit_text" not in decided[1] + decided[2]
    assert "misfit_text" in decided[3]


def test_the_rating_of_recordings_prefers_bandwidth_quiet_and_unclipped_ones(tmp_path) -> None:
    def rate(**measures: float) -> float:
        one = clip(**({"bandwidth_hz": 8000.0, "peak_spread": 1.25} | measures))
        return clip_selection._rate_recording(recording(one))

    clean = rate()
    assert clean > rate(bandwidth_hz=4000.0)
    assert clean > rate(snr_db=20.0)
    assert clean > rate(peak_spread=1.02, bandwidth_hz=12_000.0), "the overtones of clipping are no bandwidth"
    assert clean == rate(peak_spread=1.4), "a voice with rarer peaks is not better"
    assert clean == rate(snr_db=90.0), "digital silence is no quality"


def make_conversation(name: str, *people: int) -> PreparedRecording:
    """A recording with a clip of 5 s every 6 s, each of one person, with windows of that person."""
    spans = [
        (6 * MASTER_RATE * number + hop * 18_000, 6 * MASTER_RATE * number + hop * 18_000 + 38_400)
        for number in range(len(people))
        for hop in range(4)
    ]
    vectors = np.concatenate([windows_of(person, 4 * (number + 1))[-4:] for number, person in enumerate(people)])
    clips = tuple(clip(number).model_copy(update={"id": f"{name}_{number}"}) for number in range(len(people)))
    source = RecordingSource(Path(name), name, name, "me")
    return PreparedRecording(source, 600 * MASTER_RATE, clips=clips, windows=VoiceWindows(np.array(spans), vectors))


def test_a_guest_in_a_recording_of_the_speaker_is_rejected_and_a_recording_of_another_voice_is_reported() -> None:
    recordings = [make_conversation("talk", 1, 2, 1, 2, 1, 1), make_conversation("hers", 2, 2), make_conversation("mine", 1, 1)]
    judged = clip_selection.apply_rules(recordings, STANDARD)
    assert [one.reasons for one in judged] == [(), ("guest_speaker",), (), ("guest_speaker",), (), (), (), (), (), ()]
    assert [one.speaker for one in judged] == ["me"] * 10
    assert clip_selection.describe_voices(judged) == [
        "speaker me has 2 voices: 60% sound like clips/aa/aa_0.flac, 40% sound like clips/aa/aa_1.flac"
    ]
    assert clip_selection.describe_voices(clip_selection.apply_rules(recordings[2:], STANDARD)) == []


def test_with_diarize_each_clip_has_the_speaker_of_its_voice() -> None:
    recordings = [make_conversation("talk", 1, 2, 1, 2, 1, 1), make_conversation("hers", 2, 2)]
    judged = clip_selection.apply_rules(recordings, replace(STANDARD, diarize=True))
    assert [(one.speaker, one.reasons) for one in judged] == [(f"speaker_{voice}", ()) for voice in (1, 2, 1, 2, 1, 1, 2, 2)]
    assert [row.speaker for row in clip_selection.make_rows(judged)] == [one.speaker for one in judged]


def test_with_diarize_there_are_as_many_speakers_as_are_known() -> None:
    recordings = [make_conversation("talk", 1, 2, 1, 2, 3, 3)]
    for count, expected in ((None, 3), (VoiceCount(2, 2), 2), (VoiceCount(1, 2), 2)):
        judged = clip_selection.apply_rules(recordings, replace(STANDARD, diarize=True, voices=count))
        assert len({one.speaker for one in judged}) == expected
