"""Tests of `overtone.recipes.speech.preferences.clip_decisions`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.preferences import clip_decisions
from overtone.recipes.speech.preferences.clip_decisions import ClipAnswer, choose_trial, compute_trial_key, decide, read_answers
from overtone.recipes.speech.preferences.pair_selection import ClipRecord
from tests.recipes.speech.preferences.clip_files import write_clip
from tests.recipes.speech.preferences.test_pair_selection import make_clip

REPLACED = "about a clip that is missing or has changed"


def answer(left: ClipRecord, right: ClipRecord, choice: Any, trial: str | None = None) -> ClipAnswer:
    return ClipAnswer(trial=trial or compute_trial_key(left, right), choice=choice, clips=[left.audio, right.audio])


def write_answers(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_the_majority_decides_whatever_the_sides(tmp_path: Path) -> None:
    a, b, c = (write_clip(tmp_path, key) for key in "abc")
    given = [answer(a, b, "left"), answer(b, a, "right"), answer(b, a, "left"), answer(a, b, "same"), answer(c, b, "right")]
    found = decide(given, [[a, b, c]], tmp_path)
    first, second = found.by_clips[frozenset((a.audio, b.audio))], found.by_clips[frozenset((b.audio, c.audio))]
    assert first.preferred == (a, b) and (sorted(first.votes), first.same) == ([1, 2], 1)
    assert second.preferred == (b, c) and not found.dropped
    for choices in (("left", "right"), ("same",)):
        tied = decide([answer(a, b, choice) for choice in choices], [[a, b, c]], tmp_path)
        assert [one.preferred for one in tied.by_clips.values()] == [None]


def test_answers_that_do_not_count_are_counted(tmp_path: Path) -> None:
    a, b, c, d, e = (write_clip(tmp_path, key) for key in "abcde")
    twin = write_clip(tmp_path, "f").model_copy(update={"codes": a.codes})
    (tmp_path / c.audio).write_bytes(b"other samples")
    (tmp_path / d.audio).unlink()
    given = [
        ClipAnswer(trial="of models", choice="left"),
        answer(a, e, "left"),
        answer(a, make_clip("z"), "left"),
        answer(a, twin, "left"),
        answer(a, a, "left"),
        answer(a, b, "left", trial="0" * 12),
        answer(a, c, "left"),
        answer(a, d, "left"),
    ]
    found = decide(given, [[a, b, c, d, twin], [e]], tmp_path)
    assert not found.by_clips and found.dropped == {
        "about two models, not two clips": 1,
        "about two texts": 1,
        "about clips of another model, other settings or another folder": 1,
        "about a clip and itself": 2,
        REPLACED: 3,
    }
    changed = a.model_copy(update={"codes": [[1] * 16]})
    assert decide([answer(a, b, "left")], [[changed, b]], tmp_path).dropped == {REPLACED: 1}, "the codes of another clip"


def test_each_listener_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"trial": "a", "text": "A.", "left": "x", "right": "y", "choice": "left", "winner": "x", "clips": ["clips/a", "clips/b"]}
    first = write_answers(tmp_path / "1.jsonl", row, '{"trial": "half', {**row, "choice": "right"})
    second = write_answers(tmp_path / "2.jsonl", {**row, "choice": "same"})
    answers, torn = read_answers([first, second])
    assert [one.choice for one in answers] == ["right", "same"] and torn == 1
    assert f"warning: {first}:2: incomplete" in capsys.readouterr().err


def test_the_same_answers_do_not_count_twice(tmp_path: Path) -> None:
    row = {"trial": "a", "choice": "left", "clips": ["clips/a", "clips/b"]}
    first, copy = (write_answers(tmp_path / name, row) for name in ("1.jsonl", "copy.jsonl"))
    for again in (first, copy):
        with pytest.raises(UserError, match=rf"--decisions {again}: has the same answers as {first}, which would count twice"):
            read_answers([first, again])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (({"text": "A row of a dataset."},), r"1.jsonl:1: not an answer of `serve --blind` \(trial: Field required"),
        (({"trial": "a", "choice": "best"},), r"1.jsonl:1: not an answer of .*choice"),
        (({"trial": 1, "choice": "left"},), r"1.jsonl:1: not an answer of .*trial"),
        (({"trial": "a", "choice": "left", "clips": ["one"]},), r"1.jsonl:1: not an answer of .*clips"),
        (("a novel", "in two lines"), "1.jsonl: has no answer of `serve --blind`"),
        ((), "1.jsonl: has no answer of `serve --blind`"),
    ],
)
def test_other_files_are_refused(rows: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_answers([write_answers(tmp_path / "1.jsonl", *rows)])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--decisions .*gone.jsonl: No such file or directory; give the file of"):
        read_answers([tmp_path / "gone.jsonl"])


def test_people_compare_the_pair_of_the_judge_or_the_extremes() -> None:
    clips = [make_clip(key) for key in "abc"]
    rewards = {"a": 0.5, "b": 0.9, "c": 0.1}
    trial = choose_trial(clips, rewards, [])
    assert trial is not None and trial.clips == ["clips/b.flac", "clips/c.flac"] and trial.text == "A boat sails."
    judged = choose_trial(clips, rewards, ["clips/a.flac", "clips/c.flac"])
    assert judged is not None and judged.clips == ["clips/a.flac", "clips/c.flac"]
    assert choose_trial(clips[:1] * 2, rewards, []) is None
    equal = choose_trial([clips[0], clips[0], clips[1]], dict.fromkeys("abc", 0.5), [])
    assert equal is not None and equal.clips == ["clips/a.flac", "clips/b.flac"], "of equal rewards, the first two that differ"


def test_clips_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"a")
    outside = make_clip("a").model_copy(update={"audio": "../secret", "sha256": hashlib.sha256(b"a").hexdigest()})
    (tmp_path / "pairs").mkdir()
    assert not clip_decisions.is_unchanged(tmp_path / "pairs", outside)
