"""rollouts.jsonl at a resume, and settings that rollouts do not admit; tests/recipes/llm_grpo/test_recipe.py runs the loop."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overtone.finetune.config import Lora, Model, Parallel
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import ROLLOUTS
from overtone.finetune.recipe import PromptRow, Rollout
from overtone.finetune.training import rollout_loop
from overtone.finetune.training.rollout_loop import RolloutLoop, check_settings, remove_later_rollouts
from overtone.recipes.llm_grpo.recipe import RECIPE


def write_log(folder: Path, *steps: int, rest: str = "") -> Path:
    path = folder / ROLLOUTS
    path.write_text("".join(json.dumps({"step": step, "prompt": "a\u2028b"}, ensure_ascii=False) + "\n" for step in steps) + rest)
    return path


@pytest.mark.parametrize("rest", ["", '{"step": 3, "pro', '{"step": 1}x\n', "[]\n", '{"step": "1"}\n'])
def test_lines_of_repeated_steps_and_half_lines_are_removed(tmp_path: Path, rest: str) -> None:
    path = write_log(tmp_path, 1, 1, 2, 3, rest=rest)
    remove_later_rollouts(tmp_path, 2)
    assert [json.loads(line)["step"] for line in path.read_text().split("\n")[:-1]] == [1, 1, 2] and path.read_text().endswith("\n")
    remove_later_rollouts(tmp_path, 0)
    assert path.read_text() == ""


def test_a_run_without_rollouts_has_nothing_to_remove(tmp_path: Path) -> None:
    remove_later_rollouts(tmp_path, 0)
    assert not (tmp_path / ROLLOUTS).exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    other = write_log(tmp_path, 1).rename(tmp_path / "other.jsonl")
    (tmp_path / ROLLOUTS).symlink_to(other)
    with pytest.raises(UserError, match=ROLLOUTS):
        remove_later_rollouts(tmp_path, 0)
    assert other.read_text()


def make_model(dropout: float = 0.0, **given: Any) -> Model:
    return Model.model_validate({"source": "base", "lora": Lora(dropout=dropout), **given})


@pytest.mark.parametrize(
    ("parallel", "model", "key"),
    [
        (Parallel(tensor=2), make_model(), "parallel.tensor"),
        (Parallel(offload=True), make_model(), "parallel.offload"),
        (Parallel(), make_model(quantization="nf4"), "model.quantization"),
    ],
)
def test_settings_without_a_whole_copy_are_refused_by_name(parallel: Parallel, model: Model, key: str) -> None:
    with pytest.raises(UserError, match=f"^{key} does not work with llm_grpo, which copies the weights in each step"):
        check_settings(RECIPE, "llm_grpo", parallel, model)
    others: Any = dataclasses.replace(RECIPE, rollouts=None)
    check_settings(others, "llm_dpo", parallel, model)
    check_settings(RECIPE, "llm_grpo", Parallel(), make_model())


def test_dropout_of_adapters_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"^model\.lora\.dropout: 0\.05 does not work with llm_grpo: its answers are generated without"):
        check_settings(RECIPE, "llm_grpo", Parallel(), make_model(dropout=0.05))
    check_settings(dataclasses.replace(RECIPE, rollouts=None), "llm_dpo", Parallel(), make_model(dropout=0.05))


class CountedRows:
    """Rows whose samples are their numbers."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = np.array(lengths)

    def list_not_longer(self, row: int) -> Any:
        return np.flatnonzero(self.lengths <= self.lengths[row])

    def where(self, row: int) -> str:
        return f"rows.jsonl:{row + 1}"


class FlatWorker:
    """Answers with groups without variance, except for some rows."""

    slots = 1

    def __init__(self, good: set[int]) -> None:
        self.good = good
        self.answered: list[list[int]] = []

    def answer(self, prompts: Sequence[PromptRow], _: int | None) -> list[Rollout]:
        self.answered.append([prompt.row for prompt in prompts])
        record: Any = {"prompt": "a", "flat": False, "answers": []}
        return [Rollout([{}], record, can_be_replaced=prompt.row not in self.good) for prompt in prompts]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def answer_own(rows: CountedRows, own: list[int], good: set[int], most: int, step: int | None = 3, seed: int = 5) -> Any:
        monkeypatch.setattr(rollout_loop, "read_sample", lambda rows, recipe, row: {"number": row})
        loop: Any = object.__new__(RolloutLoop)
        worker = FlatWorker(good)
        recipe = SimpleNamespace(rollouts=SimpleNamespace(replacements=lambda _: most))
        loop.__dict__.update(recipe=recipe, worker=worker, seed=seed, options=None)
        found = loop._answer_own(rows, [PromptRow(row, rows.where(row), {}) for row in own], step)
        return [one.prompt for one in found], worker.answered

    return answer_own


def test_prompts_without_variance_are_replaced_within_the_bound(answer: Any) -> None:
    rows = CountedRows([5] * 40)
    found, answered = answer(rows, [0, 1, 2], {1, *range(20, 40)}, 9)
    assert found[1].row == 1 and found[1].replaces == () and all(prompt.row >= 20 for prompt in (found[0], found[2]))
    for prompt, own in ((found[0], 0), (found[2], 2)):
        assert prompt.replaces[0] == own and len({*prompt.replaces, prompt.row}) == len(prompt.replaces) + 1, "none is drawn twice"
        assert prompt.sample == {"number": prompt.row} and prompt.where == f"rows.jsonl:{prompt.row + 1}"
    assert answered[0] == [0, 1, 2] and 1 not in answered[1]
    for most in (0, 1, 4):
        found, answered = answer(rows, [0, 1], set(), most)
        assert len(answered) == 1 + most and [len(prompt.replaces) for prompt in found] == [most, most]
    assert answer(rows, [0], set(), 4, step=None)[1] == [[0]], "an evaluation replaces nothing"


def test_a_replacement_depends_on_the_step_and_the_prompt_and_not_on_the_other_prompts(answer: Any) -> None:
    rows = CountedRows([5] * 1000)
    both, alone = answer(rows, [7, 8], {8}, 3)[0], answer(rows, [7], set(), 3)[0]
    assert both[0] == alone[0] and both[1].row == 8
    others = [answer(rows, [7], set(), 3, step=4)[0][0], answer(rows, [7], set(), 3, seed=6)[0][0], answer(rows, [9], set(), 3)[0][0]]
    assert len({alone[0].replaces[1:], *(other.replaces[1:] for other in others)}) == 4


def test_a_replacement_is_not_longer_and_repeats_a_prompt_only_without_another_one(answer: Any) -> None:
    rows = CountedRows([9, 4, 5, 6, 5])
    (found,), _ = answer(rows, [2], set(), 2)
    assert {*found.replaces, found.row} == {1, 2, 4}
    (found,), answered = answer(rows, [1], set(), 3)
    assert answered == [[1]] * 4 and found.replaces == (1, 1, 1)


def test_a_number_that_could_not_be_read_again_is_an_error(tmp_path: Path) -> None:
    loop: Any = object.__new__(RolloutLoop)
    loop.__dict__.update(run_dir=tmp_path, shown=deque())
    with pytest.raises(UserError, match="a number in the rollouts of step 3 is not finite"):
        loop._write([{"step": 3, "reward": float("inf")}])
    assert not (tmp_path / ROLLOUTS).exists()
