"""The report of a study: every trial in the table, hostile names escaped, a page without requests."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.tuning import report
from overtone.finetune.tuning.study_record import StudyDefinition, TrialRecord
from overtone.finetune.tuning.trial_metric import TrialCurve, parse_metric

DEFINITION = StudyDefinition(
    recipe="csm",
    arguments=["--train.steps", "9"],
    space={"train.lr": {"uniform": [0.1, 0.2]}},
    metric="val/loss min",
    seed=3,
    early_stopping=None,
)
METRIC = parse_metric("val/loss min")
GOOD, BAD = {"train.lr": 0.1, "train.schedule": "$<b>"}, {"train.lr": 0.2, "train.schedule": "cosine"}
RANKED = [
    TrialRecord(number=4, values=GOOD, run_seed=7, status="finished", step=9, value=1.5, value_step=6),
    TrialRecord(number=2, values=BAD, run_seed=7, status="failed", message="<script>$1_2$</script>"),
]
CURVES = {4: TrialCurve([(3, 2.0), (6, 1.5), (9, 1e300)], 9, False, ()), 2: TrialCurve([], 0, False, ())}


def test_the_report_has_all_trials_and_escapes_what_they_say(tmp_path: Path) -> None:
    picture, page = report.write_report(tmp_path / "a&b", DEFINITION, METRIC, RANKED, CURVES)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.index("trial-0004") < text.index("trial-0002") and '<tr class="best"><td>trial-0004' in text
    assert "&lt;script&gt;" in text and "<script" not in text and "&lt;b&gt;" in text and "a&amp;b" in text
    assert "default-src 'none'" in text and "http:" not in text and "https:" not in text
    assert "<dt>seed of the draws</dt><dd>3" in text and "<dt>early stopping</dt><dd>none" in text


def test_the_table_of_the_terminal_is_aligned() -> None:
    lines = report.render_table(RANKED, METRIC).splitlines()
    assert lines[0].split() == ["trial", "train.lr", "train.schedule", "val/loss", "at", "step", "steps", "state", "minutes", "seed"]
    assert lines[1].split() == ["trial-0004", "0.1", '"$<b>"', "1.5", "6", "9", "finished", "0.0", "7"]
    assert lines[2].split()[3:5] == ["–", "–"] and lines[0].index("state") == lines[1].index("finished")


def test_trials_without_any_value_are_drawn() -> None:
    assert report.draw_picture(METRIC, RANKED[1:], CURVES).startswith(b"\x89PNG")
