"""Doubts about whole transcripts: which clips, which warnings."""

from __future__ import annotations

from dataclasses import replace

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.pipeline.transcript_plausibility import TranscriptDoubts, find_doubts
from overtone.data_prep.pipeline.user_notices import format_notice
from overtone.data_prep.segmentation.subtitle_repair import TimingRepair
from overtone.data_prep.segmentation.subtitle_sync import TranscriptTiming
from overtone.data_prep.segmentation.vad import Region
from tests.data_prep.pipeline.test_clip_selection import clip, recording

RIGHT, WRONG = (0.9, 12.0), (0.1, 1.0)


def timing(start: float, stop: float, strength: tuple[float, float]) -> TranscriptTiming:
    return TranscriptTiming(round(start * MASTER_RATE), round(stop * MASTER_RATE), 24, 0.0, *strength)


def list_warnings(doubts: TranscriptDoubts) -> list[str]:
    return [format_notice(one) for one in doubts.notices if one.is_warning]


def test_clips_in_a_block_of_cues_that_do_not_fit_are_doubted() -> None:
    clips = [clip(number, text=f"Sentence {number} of some length.") for number in range(4)]  # at 0, 6, 12 and 18 s
    both = replace(recording(*clips), timings=(timing(0, 11, RIGHT), timing(12, 24, WRONG)))
    found = find_doubts([both])
    assert {identity: doubt.reason for identity, doubt in found.by_clip.items()} == {"aa_2": "mistimed_text", "aa_3": "mistimed_text"}
    assert "by 0.10; at least 0.4" in found.by_clip["aa_2"].detail
    assert found.notices[0].recordings == ("a.wav",) and "do the subtitles belong to other recordings?" in found.notices[0].text


def test_few_cues_that_do_not_fit_are_doubted_and_the_models_that_decide_are_named() -> None:
    few = replace(recording(clip()), timings=(timing(0, 6, (0.5, 3.0))._replace(cues=8),))
    found = find_doubts([few])
    assert "of 8 cues correlate with the starts of speech by 0.50; at least 0.6" in found.by_clip["aa_0"].detail
    assert "weak evidence" in found.notices[1].text and "--align MODEL or --check-with NAME" in found.notices[1].text
    many = find_doubts([replace(few, timings=(timing(0, 6, (0.5, 3.0)),))])
    assert not many.by_clip and list_warnings(many) == [], "of twelve cues and more, 0.4 is enough"
    assert len(list_warnings(find_doubts([replace(few, timings=(timing(0, 6, WRONG),))]))) == 1


def test_clips_with_speech_at_a_break_of_repaired_times_are_doubted() -> None:
    clips = [clip(number, text=f"Sentence {number} of some length.") for number in range(4)]  # at 0, 6, 12 and 18 s
    end = clips[1].stop
    repair = TimingRepair(unproven=[Region(end - MASTER_RATE // 50, end + MASTER_RATE), Region(clips[3].start + 99, clips[3].start + 9999)])
    found = find_doubts([replace(recording(*clips), repair=repair)])
    assert set(found.by_clip) == {"aa_3"} and "at a break" in found.by_clip["aa_3"].detail, "the end of aa_1 only touches a pause"


def test_a_delay_is_reported_with_its_direction() -> None:
    late = replace(recording(clip()), delay=0.98, timings=(timing(0, 6, RIGHT),))
    assert list_warnings(find_doubts([late])) == [
        "warning: a.wav: the transcript was 0.98 s late: its times were moved by that much; correct the file if another program uses it"
    ]
    assert "0.98 s early" in find_doubts([replace(late, delay=-0.98)]).notices[0].text


def test_small_recordings_of_a_speaker_are_checked_together() -> None:
    def make(count: int) -> list:
        return [recording(clip(number, text="word " * (1 + 5 * (number % 4)) + str(number))) for number in range(count)]

    assert len(find_doubts(make(20)).by_clip) == 20
    few = find_doubts(make(19))
    assert not few.by_clip
    assert [format_notice(one) for one in few.notices] == [
        "note: a.wav, a.wav, a.wav and 16 more: lengths of the texts not checked: fewer than 20 clips of a second or more"
    ]
    assert few.unchecked_lengths == {"a.wav"}


def test_clips_with_wrong_times_do_not_make_the_lengths_of_others_doubtful() -> None:
    right = [recording(clip(number, text="Sentence of some length.")) for number in range(20)]
    lengths = [recording(clip(number, text="word " * (1 + 20 * (number % 2)))) for number in range(20, 60)]
    wrong = [replace(one, timings=(timing(0, 600, WRONG),)) for one in lengths]
    assert {doubt.reason for doubt in find_doubts([*right, *lengths]).by_clip.values()} == {"misfit_text"}
    doubts = find_doubts([*right, *wrong]).by_clip
    assert {doubt.reason for doubt in doubts.values()} == {"mistimed_text"}
    assert len(doubts) == 40


def test_a_note_says_that_the_times_of_few_cues_were_not_checked() -> None:
    few = replace(recording(clip()), has_unchecked_times=True)
    found = [format_notice(one) for one in find_doubts([few]).notices]
    assert found[0] == "note: a.wav: times not checked: fewer than 5 cues"
    assert found[1].startswith("note: a.wav: lengths of the texts not checked")
    right = replace(recording(*(clip(number, text=f"Sentence {number}.") for number in range(20))), timings=(timing(0, 6, RIGHT),))
    assert find_doubts([right]).notices == []
