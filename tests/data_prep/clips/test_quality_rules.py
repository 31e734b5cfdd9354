"""Every rule with a clip that passes and one that fails, and the usual pace of a speaker."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.clips.quality_rules import (
    PACE_CLIPS,
    PRESETS,
    VOICE_CLIPS,
    Candidate,
    Rule,
    compute_pace_ranges,
    compute_voice_limits,
    find_failures,
)
from overtone.data_prep.manifest import Quality
from overtone.data_prep.segmentation.clip_segmentation import Lengths

GOOD = {
    "seconds": 5.0,
    "text": "A sentence of some length that takes five seconds.",
    "language": "english",
    "pace_range": None,
    "voice_limit": 0.3,
    "chars_per_second": 12.0,
    "speech_share": 0.9,
    "peak_dbfs": -3.0,
    "clipped_share": 0.0,
    "snr_db": 40.0,
    "edge_energy_db": (-40.0, -40.0),
    "longest_pause": 0.4,
    "loudness_lufs": -23.0,
    "bandwidth_hz": 11_000.0,
    "pitch_hz": 120.0,
    "speaker_cos": 0.8,
    "avg_logprob": -0.2,
    "compression_ratio": 1.3,
    "no_speech_prob": 0.01,
    "text_complete": True,
    "language_prob": 0.99,
    "repeated_share": 0.0,
    "outside_speech_share": 0.0,
    "asr_error": None,
    "peak_spread": 1.3,
    "mos_speech": 3.6,
    "background_db": -40.0,
    "mos_background": 4.0,
    "mos_overall": 3.2,
    "mos_p808": 3.8,
    "overlap_share": 0.02,
    "other_voice_share": 0.0,
    "is_speaker": True,
}
UNKNOWN = [key for key, field in Quality.model_fields.items() if not field.is_required()]


def candidate(**changes: object) -> Candidate:
    values = GOOD | changes
    own = ("seconds", "text", "language", "pace_range", "voice_limit")
    quality = Quality.model_validate({key: value for key, value in values.items() if key not in own})
    seconds, text, language, pace_range, voice_limit = (values[key] for key in own)
    return Candidate(seconds, text, language, quality, Lengths(), pace_range, voice_limit)


def judged(preset: str = "default", **changes: object) -> list[str]:
    return find_failures(candidate(**changes), PRESETS[preset])


FAILING = {
    "no_text": {"text": ""},
    "too_short": {"seconds": 0.99},
    "too_long": {"seconds": 20.01},
    "asr_error": {"asr_error": "RuntimeError: no"},
    "unsure_text": {"avg_logprob": -1.01},
    "unfinished_text": {"text_complete": False},
    "repeated_text": {"compression_ratio": 2.41},
    "looping_text": {"repeated_share": 0.31},
    "maybe_no_speech": {"no_speech_prob": 0.61, "avg_logprob": -0.51},
    "words_outside_speech": {"outside_speech_share": 0.11},
    "text_not_spoken": {"alignment_score": -0.01},
    "text_contradicted": {"check_wer": 0.51},
    "unsure_language": {"language_prob": 0.79},
    "too_slow": {"chars_per_second": 3.9},
    "too_fast": {"chars_per_second": 30.1},
    "mostly_silence": {"speech_share": 0.49},
    "long_pause": {"longest_pause": 1.51},
    "clipped": {"clipped_share": 0.0011},
    "noisy": {"snr_db": 14.9},
    "cut_in_sound": {"edge_energy_db": (-40.0, -24.9)},
    "flattened": {"peak_spread": 1.079},
    "too_quiet": {"loudness_lufs": -55.1},
    "background_sound": {"mos_background": 3.64, "background_db": -25.0},
    "poor_sound": {"mos_overall": 2.49},
    "overlapped_speech": {"overlap_share": 0.5},
    "two_voices": {"other_voice_share": 0.06},
    "guest_speaker": {"is_speaker": False},
    "other_speaker": {"speaker_cos": 0.69},
}


def test_a_good_clip_passes_and_every_rule_has_a_clip_that_fails_it_alone() -> None:
    assert judged() == []
    assert list(FAILING) == [rule.reason for rule in PRESETS["default"]]
    for reason, change in FAILING.items():
        assert judged(**change) == [reason]


def test_presets_hold_the_same_rules_more_or_less_strictly() -> None:
    assert judged("clean") == []
    assert judged("clean", bandwidth_hz=6999.0, avg_logprob=-0.71, snr_db=19.9) == ["unsure_text", "noisy", "narrow_band"]
    assert judged(bandwidth_hz=6999.0, avg_logprob=-0.71, snr_db=19.9) == []
    keepers = {"no_text", "too_short", "too_long"}
    assert {reason for reason, change in FAILING.items() if judged("keep-all", **change)} == keepers
    for change in FAILING.values():
        assert set(judged("keep-all", **change)) <= set(judged("default", **change)) <= set(judged("clean", **change))
    for rules in PRESETS.values():
        assert len({rule.reason for rule in rules}) == len(rules)


def test_all_failing_rules_are_listed() -> None:
    assert judged(seconds=0.5, clipped_share=0.5, snr_db=3.0) == ["too_short", "clipped", "noisy"]


def test_an_unknown_measure_fails_no_rule() -> None:
    assert judged("clean", **dict.fromkeys(UNKNOWN)) == []
    assert len(UNKNOWN) == 26
    assert judged(speaker_cos=-1.0, voice_limit=None) == [], "of a speaker with few clips"


def test_the_background_is_judged_by_its_rating_and_by_what_is_heard_between_the_words() -> None:
    def fails(rating: float, level: float | None) -> bool:
        return judged(mos_background=rating, background_db=level) == ["background_sound"]

    assert [fails(3.2, level) for level in (-10.0, -28.0, -32.4, -32.6, -36.0)] == [True, True, True, False, False]
    assert [fails(1.5, level) for level in (-34.9, -35.1)] == [True, False], "a whisper without a background"
    assert fails(3.64, None) and not fails(3.66, None), "a level that nobody measured"


def test_a_rule_is_a_value_and_its_limits() -> None:
    rule = Rule("pitch", "a low voice", "Hz", lambda clip: clip.quality.pitch_hz, least=100.0, most=200.0)
    assert [rule.fails(candidate(pitch_hz=value)) for value in (99.9, 100.0, 200.0, 200.1, None)] == [True, False, False, True, False]
    assert find_failures(candidate(pitch_hz=90.0), [rule]) == ["pitch"]


def test_the_possible_pace_depends_on_the_script_and_the_edge_on_the_room() -> None:
    assert judged(language="chinese", chars_per_second=3.0) == []
    assert judged(language="chinese", chars_per_second=13.0) == ["too_fast"]
    assert judged(snr_db=20.0, edge_energy_db=(-19.0, -20.0)) == []
    assert judged(snr_db=20.0, edge_energy_db=(-13.0, -20.0)) == ["cut_in_sound"]


def test_a_clip_is_compared_with_the_pace_of_its_speaker() -> None:
    assert judged(pace_range=(10.0, 14.0)) == []
    assert judged(pace_range=(12.5, 17.0)) == ["too_slow"]
    assert judged(pace_range=(8.0, 11.5)) == ["too_fast"]
    assert judged(pace_range=(12.5, 17.0), text="") == ["no_text"], "what has no text has no pace"


def test_the_usual_pace_is_four_deviations_around_the_median() -> None:
    paces = np.random.default_rng(0).normal(15, 2, 1001)
    ranges = compute_pace_ranges([("a", "english", pace) for pace in paces] + [("a", "english", 300.0)])
    deviation = np.median(np.abs(paces - np.median(paces)))
    low, high = ranges["a", "english"]
    assert low == pytest.approx(np.median(paces) - 4 * deviation, abs=0.05)
    assert high == pytest.approx(np.median(paces) + 4 * deviation, abs=0.05)


def test_each_speaker_and_language_has_its_own_pace_inside_of_what_is_possible() -> None:
    even, wild = [15.0] * 20, list(np.linspace(5, 29, 20))
    spoken = [
        *(("even", "english", pace) for pace in even),
        *(("wild", "english", pace) for pace in wild),
        *(("few", "english", pace) for pace in even[:7]),
        *(("even", "chinese", pace / 3) for pace in even),
        *(("wrong texts", "english", pace + 100) for pace in even),
    ]
    assert compute_pace_ranges(spoken) == {
        ("even", "english"): (10.5, 19.5),  # readers do not vary at all: 30 % are always allowed
        ("wild", "english"): (4.0, 30.0),
        ("few", "english"): (4.0, 30.0),
        ("even", "chinese"): (3.5, 6.5),
        ("wrong texts", "english"): (4.0, 30.0),
    }


@pytest.mark.parametrize(("clips", "known"), [(PACE_CLIPS - 1, False), (PACE_CLIPS, True), (PACE_CLIPS + 1, True)])
def test_eight_clips_say_what_a_speakers_pace_is(clips: int, known: bool) -> None:
    assert PACE_CLIPS == 8
    (found,) = compute_pace_ranges([("a", "english", 15.0)] * clips).values()
    assert found == ((10.5, 19.5) if known else (4.0, 30.0))


@pytest.mark.parametrize(("clips", "known"), [(VOICE_CLIPS - 1, False), (VOICE_CLIPS, True), (VOICE_CLIPS + 1, True)])
def test_eight_clips_say_how_far_a_voice_may_be(clips: int, known: bool) -> None:
    assert VOICE_CLIPS == 8
    assert compute_voice_limits([("a", 0.9)] * clips) == ({"a": pytest.approx(0.15)} if known else {})


def test_how_far_a_voice_may_be_is_measured_on_the_speakers_own_clips() -> None:
    near, far = np.linspace(0.95, 0.99, 101), np.linspace(0.5, 0.9, 101)
    cosines = [
        *(("near", cosine) for cosine in near),
        *(("far", cosine) for cosine in far),
        *(("same", 1.0) for _ in range(8)),
        *(("even", 0.9) for _ in range(8)),
        *(("few", 0.9) for _ in range(7)),
        ("few", None),
    ]
    assert compute_voice_limits(cosines) == {
        "near": pytest.approx(0.04 + 2 * 0.02),  # the upper quartile of 1 − cosine, and twice from quartile to quartile
        "far": pytest.approx(0.4 + 2 * 0.2),
        "same": pytest.approx(1e-5),
        "even": pytest.approx(1.5 * 0.1),
    }
    assert compute_voice_limits([*cosines, *(("near", -0.5) for _ in range(20))])["near"] < 0.2, "others do not hide themselves"
