"""The curve of a rule shows what the rule removes with other limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.clips.quality_rules import PRESETS
from overtone.data_prep.pages import quality_rule_effects
from tests.data_prep.example_clips import clip, dataset, whole

decibels = st.floats(-20, 60) | st.none()


@given(snr=st.lists(decibels, min_size=1, max_size=30), limit=st.floats(-30, 70))
@settings(max_examples=100, deadline=None)
def test_the_curve_of_a_rule_is_the_rule_with_other_limits(tmp_path_factory, snr, limit) -> None:
    made = [clip(str(at), snr_db=value, seconds=1.0 + at) for at, value in enumerate(snr)]
    everything = quality_rule_effects.build_candidate_clips(dataset(tmp_path_factory.getbasetemp(), made, []))
    rules = PRESETS["default"]
    (noisy,) = (one for one in quality_rule_effects.compute_findings(everything, rules) if one.rule.reason == "noisy")
    other = replace(noisy.rule, least=limit)
    gone = [one for one in everything if other.fails(one.candidate)]
    assert noisy.compute_removal(limit).clips == len(gone)
    assert noisy.compute_removal(limit).seconds == pytest.approx(sum(one.clip.seconds for one in gone))
    assert noisy.now.clips == sum(value is not None and value < 15 for value in snr)


def test_each_rule_is_listed_once_with_whether_it_was_applied(tmp_path) -> None:
    made = dataset(tmp_path, [clip("a")], [], preset="keep-all")
    found = quality_rule_effects.compute_findings(quality_rule_effects.build_candidate_clips(made), quality_rule_effects.list_rules(made))
    assert [one.rule.reason for one in found if one.applied] == ["no_text", "too_short", "too_long"]
    reasons = [one.rule.reason for one in found]
    assert sorted(reasons) == sorted({rule.reason for rule in PRESETS["clean"]})


def test_length_rules_use_the_limits_of_the_run(tmp_path) -> None:
    short = clip("short", ("too_short",), seconds=2.5)
    lengths = {"target": 6.0, "shortest": 3.0, "longest": 9.0}
    made = dataset(tmp_path, [clip("a"), clip("b", seconds=9.0)], [short, clip("long", ("too_long",), seconds=9.5)], lengths=lengths)
    found = {
        one.rule.reason: one
        for one in quality_rule_effects.compute_findings(
            quality_rule_effects.build_candidate_clips(made), quality_rule_effects.list_rules(made)
        )
    }
    assert (found["too_short"].limit, found["too_short"].now.clips) == (3.0, 1)
    assert (found["too_long"].limit, found["too_long"].now.seconds) == (9.0, 9.5)


def test_clips_that_only_one_rule_removes_are_counted_separately(tmp_path) -> None:
    both = clip("both", ("clipped", "noisy"), snr_db=5.0, clipped_share=0.5, seconds=8.0)
    made = dataset(tmp_path, [clip("good")], [both, clip("loud", ("clipped",), clipped_share=0.2), whole("x.mp3", "unreadable")])
    found = {
        one.rule.reason: one
        for one in quality_rule_effects.compute_findings(
            quality_rule_effects.build_candidate_clips(made), quality_rule_effects.list_rules(made)
        )
    }
    assert (found["clipped"].now.clips, found["clipped"].now.seconds, found["clipped"].alone.clips) == (2, 12.0, 1)
    assert (found["noisy"].now.clips, found["noisy"].alone.clips) == (1, 0)
    assert len(found["unsure_text"].values) == 0
    assert not found["unsure_text"].varies


def test_a_clip_is_as_good_as_its_weakest_measure(tmp_path) -> None:
    kept = [clip(f"c{at}", snr_db=20.0 + at, edge_energy_db=(-90.0, -60.0 - at)) for at in range(20)]
    everything = quality_rule_effects.build_candidate_clips(dataset(tmp_path, [*kept, clip("edge", edge_energy_db=(-25.5, -60.0))], []))
    found = quality_rule_effects.find_weaknesses(everything, PRESETS["default"])
    assert found["edge"].rule.reason == "cut_in_sound"
    assert found["edge"].limit == -25.0
    assert found["c0"].rule.reason == "noisy"
    assert (found["c0"].value, found["c0"].limit) == (20.0, 15.0)
    assert found["edge"].margin < found["c0"].margin < found["c5"].margin


def test_a_measure_with_one_common_value_ranks_only_failing_clips(tmp_path) -> None:
    kept = [clip(f"c{at}", snr_db=20.0 + at) for at in range(20)]
    everything = quality_rule_effects.build_candidate_clips(dataset(tmp_path, kept, [clip("loud", ("clipped",), clipped_share=0.1)]))
    found = quality_rule_effects.find_weaknesses(everything, PRESETS["default"])
    assert found["loud"].rule.reason == "clipped"
    assert {found[f"c{at}"].rule.reason for at in range(20)} == {"noisy"}
