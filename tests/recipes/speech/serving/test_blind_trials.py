"""Trials: random sides, one answer each, what is kept over a restart, and the exact interval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.serving.blind_trials import (
    AnsweredError,
    BlindTrials,
    Trial,
    evaluate,
    make_clip_trials,
    make_trials,
    read_answers,
    read_texts,
)

PAIR = {"before": "weights 1", "after": "weights 2"}
TEXTS = [f"Sentence {number}." for number in range(200)]


def test_sides_and_order_are_random() -> None:
    trials = make_trials(TEXTS, PAIR, "seed 0")
    assert sorted(trial.text for trial in trials) == sorted(TEXTS) and [trial.text for trial in trials] != TEXTS
    assert all({trial.left, trial.right} == set(PAIR) for trial in trials)
    assert 60 < sum(trial.left == "after" for trial in trials) < 140, "outside this range once in 10⁸ runs"
    assert {trial.key for trial in trials} == {trial.key for trial in make_trials(TEXTS, PAIR, "seed 0")}
    for systems, sampling in (
        ({**PAIR, "after": "weights 3"}, "seed 0"),
        (PAIR, "seed 1"),
        ({"before": "weights 1", "x": "weights 2"}, "seed 0"),
    ):
        assert not {trial.key for trial in trials} & {trial.key for trial in make_trials(TEXTS, systems, sampling)}


def test_answers_to_other_weights_of_the_same_name_do_not_count(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    first = BlindTrials(make_trials(TEXTS[:3], PAIR, "seed 0"), results)
    assert first.next is not None and first.others == 0
    first.answer(first.next.key, "left")
    trained_on = BlindTrials(make_trials(TEXTS[:3], {**PAIR, "after": "weights 3"}, "seed 0"), results)
    assert trained_on.answers == {} and trained_on.others == 1 and trained_on.outcome.same == 0


def test_an_answer_is_written_once_and_the_next_trial_comes(tmp_path: Path) -> None:
    trials = BlindTrials([Trial("a", "One.", "before", "after"), Trial("b", "Two.", "after", "before")], tmp_path / "r.jsonl")
    assert trials.next is not None and trials.next.key == "a" and trials.next is trials.next
    trials.answer("a", "right")
    trials.answer("a", "right")
    with pytest.raises(AnsweredError):
        trials.answer("a", "left")
    with pytest.raises(KeyError):
        trials.answer("c", "left")
    assert trials.next is not None and trials.next.key == "b"
    (row,) = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert row.pop("time") > 1e9
    assert row == {"trial": "a", "text": "One.", "left": "before", "right": "after", "choice": "right", "winner": "after"}
    trials.answer("b", "same")
    assert trials.next is None and trials.outcome.wins == {"after": 1, "before": 0} and trials.outcome.same == 1


def test_clips_are_on_random_sides_and_their_answers_name_them(tmp_path: Path) -> None:
    given = [(f"{number:012d}", text, f"clips/good-{number}.flac", f"clips/bad-{number}.flac") for number, text in enumerate(TEXTS)]
    trials = make_clip_trials(given)
    assert sorted(trial.text for trial in trials) == sorted(TEXTS) and [trial.text for trial in trials] != TEXTS
    assert 60 < sum(trial.left == "higher reward" for trial in trials) < 140, "outside this range once in 10⁸ runs"
    for trial in trials:
        assert trial.clips is not None and [trial.left, trial.right] == [
            {"good": "higher reward", "bad": "lower reward"}[clip[6:].partition("-")[0]] for clip in trial.clips
        ]
    BlindTrials(trials, tmp_path / "r.jsonl").answer(trials[0].key, "left")
    row = json.loads((tmp_path / "r.jsonl").read_text())
    assert row["clips"] == list(trials[0].clips or ()) and row["winner"] == trials[0].left


def test_other_weights_of_the_reward_change_what_an_earlier_answer_says(tmp_path: Path) -> None:
    """The same two clips; the one that was preferred has the lower reward now."""
    results, key = tmp_path / "r.jsonl", "0" * 12
    (trial,) = make_clip_trials([(key, "A.", "clips/a.flac", "clips/b.flac")])
    assert trial.clips is not None
    BlindTrials([trial], results).answer(key, "left" if trial.clips[0] == "clips/a.flac" else "right")
    for best, other, winner in (("a", "b", "higher reward"), ("b", "a", "lower reward")):
        again = BlindTrials(make_clip_trials([(key, "A.", f"clips/{best}.flac", f"clips/{other}.flac")]), results)
        assert again.answers == {key: winner}
    for damaged in ({"clips": 5}, {"clips": ["clips/a.flac"]}, {"choice": ["left"]}):
        row = {"trial": key, "winner": "same", "choice": "left", "clips": ["clips/a.flac", "clips/b.flac"], **damaged}
        results.write_text(json.dumps(row) + "\n")
        assert BlindTrials([trial], results).answers == {key: "same"}


def test_a_restart_skips_what_has_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "r.jsonl"
    first = BlindTrials(make_trials(TEXTS[:3], PAIR, "seed 0"), results)
    assert first.next is not None
    key = first.next.key
    first.answer(key, "left")
    with results.open("a") as file:
        file.write('{"trial": "half')
    again = BlindTrials(make_trials(TEXTS[:3], PAIR, "seed 0"), results)
    assert again.answers == first.answers and again.next is not None and again.next.key != key
    with pytest.raises(AnsweredError):
        again.answer(key, "left")
    again.answer(again.next.key, "same")
    third = BlindTrials(make_trials(TEXTS[:3], PAIR, "seed 0"), results)
    assert third.answers == again.answers and len(third.answers) == 2, "the incomplete line is in the middle now"
    assert f"warning: {results}:2: incomplete" in capsys.readouterr().err
    assert BlindTrials(make_trials(TEXTS[:3], {"x": "", "y": ""}, "seed 0"), results).answers == {}


@pytest.mark.parametrize(
    ("wins", "losses", "interval", "verdict"),
    [
        (9, 1, (0.5550, 0.9975), "after is better"),
        (5, 5, (0.1871, 0.8129), "no clear difference"),
        (0, 8, (0.0, 0.3694), "before is better"),
    ],
)
def test_intervals_are_those_of_clopper_and_pearson(wins: int, losses: int, interval: tuple[float, float], verdict: str) -> None:
    """Expected values: the published tables of exact 95 % limits."""
    found = evaluate({"after": wins, "before": losses}, 2)
    assert (found.low, found.high) == pytest.approx(interval, abs=1e-4) and found.share == wins / (wins + losses)
    assert found.describe().endswith(f"{verdict}.") and "neither 2 times" in found.describe()


def test_without_a_preference_there_is_no_result() -> None:
    assert evaluate({"after": 0, "before": 0}, 3).describe().endswith("Without a preference there is no result.")


def test_texts_and_results_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("One.\n\n Two. \nOne.\n")
    assert read_texts(tmp_path / "t.txt") == ["One.", "Two."]
    (tmp_path / "t.txt").write_text("\n")
    with pytest.raises(UserError, match="--blind .*has no text"):
        read_texts(tmp_path / "t.txt")
    with pytest.raises(UserError, match="--blind .*cannot be read"):
        read_texts(tmp_path / "gone.txt")
    for content in ("{}\n", "a novel\nin two lines\n"):
        (tmp_path / "r.jsonl").write_text(content)
        with pytest.raises(UserError, match=r"r.jsonl:1: not an answer"):
            read_answers(tmp_path / "r.jsonl")
    assert read_answers(tmp_path / "gone.jsonl") == {}
