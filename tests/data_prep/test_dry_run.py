"""The table shows each rule with what it would remove, and what it alone would."""

from __future__ import annotations

from data_prep import dry_run
from data_prep.decisions import Decision
from data_prep.score import PRESETS
from data_prep.segment import Lengths
from tests.data_prep.test_judge import clip, recording


def cells(line: str) -> list[str]:
    return line.split()[:5]


def test_a_line_for_each_rule_and_for_each_preset() -> None:
    clips = [clip(0), clip(1, snr_db=17.0), clip(2, snr_db=3.0), clip(3, snr_db=3.0, clipped_share=0.5), clip(4)]
    decisions = {"aa_4": Decision(id="aa_4", action="reject")}
    lines = dry_run.table([recording(*clips)], "default", Lengths(), decisions).splitlines()
    assert len(lines) == 1 + len(PRESETS["default"]) + 1 + len(PRESETS)
    by_rule = {line.split()[0]: cells(line) for line in lines[1:]}
    assert by_rule["noisy"] == ["noisy", "2", "0:00:10", "1", "0:00:05"]
    assert by_rule["clipped"] == ["clipped", "1", "0:00:05", "0", "0:00:00"]
    assert by_rule["too_long"] == ["too_long", "0", "0:00:00", "0", "0:00:00"]
    assert by_rule["review"] == ["review", "1", "0:00:05", "1", "0:00:05"]
    assert lines[-3:] == [
        "--preset clean     keeps 1 of 5 clips, 0:00:05 of 0:00:25",
        "--preset default   keeps 2 of 5 clips, 0:00:10 of 0:00:25",
        "--preset keep-all  keeps 4 of 5 clips, 0:00:20 of 0:00:25",
    ]
    assert "(from 15 dB)" in next(line for line in lines if line.startswith("noisy"))
