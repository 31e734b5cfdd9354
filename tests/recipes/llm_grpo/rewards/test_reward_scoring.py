"""Answers scored by several rewards: weights, failures, and what is refused before the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.llm_grpo.options import Rewards
from overtone.recipes.llm_grpo.rewards import reward_scoring
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError, RewardTimeoutError
from overtone.recipes.llm_grpo.rewards.judge_client import JudgeClient
from overtone.recipes.llm_grpo.rewards.reward_scoring import GeneratedText, RewardScorer


def make_answer(text: str, row: dict[str, Any] | None = None, tokens: int = 5) -> GeneratedText:
    return GeneratedText(text, tokens, "prompt", row or {}, "rows.jsonl:3")


def make_rewards(**given: Any) -> Rewards:
    return Rewards.model_validate(given, strict=False)


def test_the_total_is_the_weighted_sum(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps({"type": "integer"}))
    rewards = make_rewards(
        exact_match={"weight": 2.0},
        numeric_answer={"weight": 0.5},
        regular_expression={"pattern": "[0-9]+"},
        json_schema={"weight": 0.25, "file": tmp_path / "schema.json"},
        length={"weight": -1.0},
    )
    scorer = RewardScorer(rewards, longest=10)
    right, wrong = scorer.score(1, [make_answer(" 42 ", {"answer": 42}), make_answer("x 42", {"answer": "42"}, tokens=11)])
    scorer.close()
    assert right.rewards == {"exact_match": 1, "numeric_answer": 1, "regular_expression": 1, "json_schema": 1, "length": 0.5}
    assert right.total == pytest.approx(2 + 0.5 + 1 + 0.25 - 0.5)
    assert wrong.rewards == {"exact_match": 0, "numeric_answer": 1, "regular_expression": 0, "json_schema": 0, "length": 0}
    assert wrong.total == 0.5 and not right.failures + wrong.failures


def test_each_row_can_have_its_own_schema() -> None:
    scorer = RewardScorer(make_rewards(json_schema={}), 10)
    found = scorer.score(1, [make_answer("3", {"schema": {"type": kind}}) for kind in ("integer", "string")])
    scorer.close()
    assert [one.total for one in found] == [1, 0]


def test_functions_are_rewards_with_their_weights_and_a_failure_leaves_the_answer_out_counts_as_zero_or_stops(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("WEIGHTS = {'size': 3}\ndef size(answer, row): return 1 / len(answer)")
    scorer = RewardScorer(make_rewards(functions=tmp_path / "f.py"), 10)
    good, failed = scorer.score(1, [make_answer("ab"), make_answer("")])
    assert scorer.weights == {"size": 3.0} and good.total == 1.5
    assert failed.total == 0 and failed.rewards == {"size": 0.0} and failed.failures == ["size: ZeroDivisionError: division by zero"]
    assert failed.unknown and not good.unknown
    scorer.close()
    counting = RewardScorer(make_rewards(functions=tmp_path / "f.py", on_failure="zero"), 10)
    (counted,) = counting.score(1, [make_answer("")])
    counting.close()
    assert counted.total == 0 and counted.failures == failed.failures and not counted.unknown
    stopping = RewardScorer(make_rewards(functions=tmp_path / "f.py", on_failure="stop"), 10)
    with pytest.raises(UserError, match=r"^rows\.jsonl:3: the reward size of '' failed: ZeroDivisionError"):
        stopping.score(1, [make_answer("")])
    stopping.close()


def test_a_failed_reward_without_weight_leaves_no_answer_out(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("WEIGHTS = {'seen': 0}\ndef seen(answer, row): raise ValueError")
    scorer = RewardScorer(make_rewards(functions=tmp_path / "f.py", length={}), 10)
    (found,) = scorer.score(1, [make_answer("a")])
    scorer.close()
    assert found.failures and not found.unknown and found.total == 0.5


def test_a_long_answer_is_punished_beside_what_is_right() -> None:
    scorer = RewardScorer(make_rewards(length={}, overlong={"tokens": 4, "weight": 2.0}), 10)
    found = scorer.score(1, [make_answer("a", tokens=tokens) for tokens in (6, 8, 10, 11)])
    scorer.close()
    assert [one.rewards["overlong"] for one in found] == [0, -0.5, -1, -1] and [one.shaping for one in found] == [0, -1, -2, -2]
    assert [one.total for one in found] == pytest.approx([0.4, 0.2 - 1, -2, -2])
    with pytest.raises(
        UserError, match="options.rewards has only overlong, which does not say what a good answer is; set at least one other"
    ):
        RewardScorer(make_rewards(overlong={"tokens": 4}), 10)


def test_a_failure_can_be_written_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(answer, row): raise ValueError(chr(0xd800) + chr(27) + answer)")
    scorer = RewardScorer(make_rewards(functions=tmp_path / "f.py"), 10)
    (found,) = scorer.score(1, [make_answer("see http://me:word@host/a")])
    scorer.close()
    assert found.failures == [r"f: ValueError: \ud800\x1bsee http://***@host/a"] and found.failures[0].encode()


def test_judges_rate_with_the_prompt_and_the_expected_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(_: object, prompt: str, answer: str, expected: object) -> float:
        if answer == "?":
            raise RewardError("no rating")
        return 0.5 if (prompt, expected) == ("prompt", "4") else 0.0

    monkeypatch.setattr(JudgeClient, "rate", judge)
    scorer = RewardScorer(make_rewards(judge={"weight": 2.0, "url": "http://127.0.0.1:9", "model": "m"}), 10)
    found = scorer.score(1, [make_answer("4", {"answer": "4"}), make_answer("?", {"answer": "4"})])
    scorer.close()
    assert [one.total for one in found] == [1.0, 0.0] and found[1].failures == ["judge: no rating"]


def test_what_is_too_large_for_fp32_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(answer, row): return float(answer)")
    scorer = RewardScorer(make_rewards(functions=tmp_path / "f.py", length={"weight": 3e38}), 10)
    found = scorer.score(1, [make_answer("1e308"), make_answer("2e38", tokens=0), make_answer("1")])
    scorer.close()
    assert found[0].failures == ["f: it returned 1e+308"] and found[1].failures == ["total: 5e+38 is not finite in fp32"]
    assert found[1].total == 0 and found[1].unknown and not found[2].failures


def test_a_reward_that_always_fails_is_reported_and_one_that_is_late_does_not_hold_up_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.py").write_text("def f(answer, row): raise ValueError(answer)\ndef g(answer, row): return 1 / len(answer)")
    scorer = RewardScorer(make_rewards(functions=tmp_path / "f.py"), 10)
    scorer.score(1, [make_answer("a"), make_answer("")])
    scorer.close()
    assert capsys.readouterr().err == "warning: all 2 calls of the reward f failed; the first: ValueError: a\n"

    calls: list[str] = []

    def rate(*given: object) -> float:
        calls.append(str(given))
        raise RewardTimeoutError("late")

    monkeypatch.setattr(JudgeClient, "rate", rate)
    monkeypatch.setattr(reward_scoring, "JUDGED_AT_ONCE", 1)
    scorer = RewardScorer(make_rewards(judge={"url": "http://127.0.0.1:9", "model": "m"}), 10)
    found = [one for count in (3, 4) for one in scorer.score(1, [make_answer("a")] * count)]
    assert len(calls) == reward_scoring.MOST_LATE == 5, "answers in the place of others are of the same step"
    assert [one.failures[0] for one in found[4:6]] == ["judge: late", "judge: not computed, because 5 calls of this step took too long"]
    for step, expected in ((2, 10), (None, 15), (None, 15), (3, 20)):
        scorer.score(step, [make_answer("a")] * 7)
        assert len(calls) == expected, "each step, and each evaluation, counts anew"
    scorer.close()


def test_rewards_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="options.rewards is empty; set at least one"):
        RewardScorer(Rewards(), 10)
    with pytest.raises(UserError, match=r"json_schema\.file: .*none\.json"):
        RewardScorer(make_rewards(json_schema={"file": tmp_path / "none.json"}), 10)
    (tmp_path / "f.py").write_text("def length(answer, row): return 1")
    with pytest.raises(UserError, match="length is the name of a built-in reward; rename it"):
        RewardScorer(make_rewards(functions=tmp_path / "f.py", length={}), 10)
