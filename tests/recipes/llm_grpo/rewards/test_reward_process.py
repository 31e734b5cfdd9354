"""Parts of the child process; `test_reward_process_client.py` tests the process itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError
from overtone.recipes.llm_grpo.rewards.reward_process import check_schema, compute_reward, describe, load_functions


def test_a_file_may_import_what_is_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(__import__("sys").modules, "reward_functions", raising=False)
    (tmp_path / "beside_these_rewards.py").write_text("VALUE = 3")
    (tmp_path / "f.py").write_text("from beside_these_rewards import VALUE\ndef f(answer, row): return VALUE")
    functions, weights = load_functions(tmp_path / "f.py")
    assert compute_reward({"function": "f", "answer": "", "row": {}}, functions) == 3.0 and weights == {"f": 1.0}


def test_a_call_without_a_function_checks_a_schema() -> None:
    assert compute_reward({"function": None, "answer": "3", "schema": {"type": "integer"}}, {}) == 1.0
    assert check_schema('{"a": 1, "a": 2}', {}) == 0.0, "duplicate keys are no JSON object that all readers agree on"


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(RewardError, match="it returned None, not a number"):
        compute_reward({"function": "f", "answer": "", "row": {}}, {"f": lambda _, __: None})


def test_an_error_takes_one_short_line() -> None:
    assert describe(ValueError("a\nb" * 500)).startswith("ValueError: a b") and len(describe(ValueError("a\nb" * 500))) < 230
