"""The contract of rollouts: llm_grpo fulfils it."""

from __future__ import annotations

from overtone.finetune.recipe import LoggedRollout, RolloutWorker
from overtone.recipes.llm_grpo.group_answering import GroupAnswering
from overtone.recipes.llm_grpo.recipe import RECIPE


def test_the_worker_has_all_methods_of_the_protocol() -> None:
    wanted = {name for name, each in vars(RolloutWorker).items() if callable(each) and not name.startswith("_")}
    assert wanted == {"update_weights", "answer", "make_filler", "close"} <= {*vars(GroupAnswering)}
    assert RECIPE.rollouts is not None and RECIPE.rollouts.open is GroupAnswering


def test_a_line_says_which_step_and_row_it_is_of() -> None:
    assert {*LoggedRollout.__annotations__} >= {"step", "row"} and LoggedRollout.__total__
