"""The table of a dry run shows for each rule what it removes, and what it alone removes."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.extraction import MeasuredClip
from overtone.data_prep.clips.fingerprints import compute_fingerprint
from overtone.data_prep.clips.quality_rules import PRESETS
from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.pipeline import rule_removal_table
from tests.data_prep.pipeline.test_clip_selection import STANDARD, TEXT, clip, recording


def cells(line: str) -> list[str]:
    return line.split()[:5]


def test_the_dry_run_has_a_line_for_each_rule_and_each_preset(tmp_path) -> None:
    measures = [{}, {"snr_db": 17.0}, {"snr_db": 3.0}, {"snr_db": 3.0, "clipped_share": 0.5}, {}, {}]
    clips = [clip(number, text=f"{TEXT} {number % 5}", **measured) for number, measured in enumerate(measures)]
    # the last sounds like the first
    sounds = [np.random.default_rng(number % 5).normal(0, 0.1, 5 * MASTER_RATE).astype(np.float32) for number in range(6)]
    words = [base64.b64encode(compute_fingerprint(one, 0, len(one)).astype("<u4").tobytes()) for one in sounds]
    heard = [MeasuredClip.model_validate(one.model_dump() | {"fingerprint": own}) for one, own in zip(clips, words, strict=True)]
    decisions = {"aa_4": Decision(id="aa_4", action="reject")}
    standard = replace(STANDARD, decisions=decisions)
    lines = rule_removal_table.format_removals([recording(*heard)], "default", standard, tmp_path).splitlines()
    assert len(lines) == 1 + len(PRESETS["default"]) + 2 + len(PRESETS)
    by_rule = {line.split()[0]: cells(line) for line in lines[1:]}
    assert by_rule["noisy"] == ["noisy", "2", "0:00:10", "1", "0:00:05"]
    assert by_rule["clipped"] == ["clipped", "1", "0:00:05", "0", "0:00:00"]
    assert by_rule["too_long"] == ["too_long", "0", "0:00:00", "0", "0:00:00"]
    assert by_rule["duplicate"] == ["duplicate", "1", "0:00:05", "1", "0:00:05"]
    assert by_rule["review"] == ["review", "1", "0:00:05", "1", "0:00:05"]
    assert lines[-3:] == [
        "--preset clean     keeps 1 of 6 clips, 0:00:05 of 0:00:30",
        "--preset default   keeps 2 of 6 clips, 0:00:10 of 0:00:30",
        "--preset keep-all  keeps 4 of 6 clips, 0:00:20 of 0:00:30",
    ]
    assert "(from 15; dB)" in next(line for line in lines if line.startswith("noisy"))
