"""Groups of answers: keys of their randomness, samples and records, and evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from overtone.finetune.recipe import PromptRow, RolloutSettings
from overtone.recipes.language.rollout_generation import GeneratedTokens
from overtone.recipes.llm_grpo.group_answering import GroupAnswering
from overtone.recipes.llm_grpo.options import Options, Rewards
from overtone.recipes.llm_grpo.prompt_rows import PromptProcessor, read
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError
from tests.recipes.llm_sft import families, tiny_runs

ROWS = [{"prompt": [{"role": "user", "content": text}], "answer": "no"} for text in ("Good day.", "Who are you?", "Is it cold?")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("groups") / "base")


def make_rewards() -> Rewards:
    return Rewards.model_validate({"length": {}, "exact_match": {"weight": 2.0}}, strict=False)


@pytest.fixture
def opened(base: Path) -> Iterator[Any]:
    made: list[GroupAnswering] = []

    def open_worker(family: str = "chatml", seed: int = 3, **given: Any) -> tuple[GroupAnswering, list[PromptRow]]:
        options = Options(**{"rewards": make_rewards(), "group": 4, "max_new_tokens": 12, "rollout_batch": 4, **given})
        processor = PromptProcessor(families.tokenizer(family), options, 96)
        loaded: Any = SimpleNamespace(processor=processor, base=base, buffers={})
        worker = GroupAnswering(loaded, options, RolloutSettings(seed, torch.float32, torch.device("cpu")))
        worker.update_weights(AutoModelForCausalLM.from_pretrained(base).named_parameters())
        made.append(worker)
        return worker, [PromptRow(number, f"rows.jsonl:{number}", read(row, processor, Path())) for number, row in enumerate(ROWS)]

    yield open_worker
    for worker in made:
        worker.close()


def test_thoughts_are_not_scored(opened: Any) -> None:
    worker, prompts = opened("qwen3")
    encode = families.tokenizer("qwen3").encode
    answers = {"<think>\nyes</think>\n\nno": 2.0, "<think>no": 0.0, "no": 2.0}
    found = [GeneratedTokens([*encode(text), 0], [0.0] * (len(encode(text)) + 1), True) for text in (*answers, "no")]
    worker._generator.generate = lambda *_: found
    (rollout,) = worker.answer(prompts[:1], 1)
    recorded = rollout.record["answers"]
    assert [answer["text"] for answer in recorded] == [*answers, "no"], "the log has the thoughts"
    assert [2 * answer["rewards"]["exact_match"] for answer in recorded] == [*answers.values(), 2.0]
    assert [answer["ended"] for answer in recorded] == [True, False, True, True]
    assert [float(sample["metric/unfinished"]) for sample in rollout.samples] == [0, 1, 0, 0]
    plain = PromptRow(0, "rows.jsonl:1", read({"prompt": "a", "answer": "<think>no"}, worker_processor("qwen3"), Path()))
    assert [answer["rewards"]["exact_match"] for answer in worker.answer([plain], 1)[0].record["answers"]] == [0, 1, 0, 0]


def worker_processor(family: str) -> PromptProcessor:
    return PromptProcessor(families.tokenizer(family), Options(rewards=make_rewards(), group=4, max_new_tokens=12, rollout_batch=4), 96)


def texts(rollouts: list[Any]) -> list[list[str]]:
    return [[answer["text"] for answer in rollout.record["answers"]] for rollout in rollouts]


def test_an_answer_is_keyed_by_seed_step_row_and_number(opened: Any) -> None:
    worker, prompts = opened()
    first = texts(worker.answer(prompts, 1))
    assert texts(worker.answer(prompts[::-1], 1))[::-1] == first and texts(worker.answer(prompts[1:2], 1)) == first[1:2]
    assert texts(worker.answer(prompts, 2)) != first and texts(opened(seed=4)[0].answer(prompts, 1)) != first
    again = [PromptRow(prompt.row, prompt.where, prompt.sample, 1) for prompt in prompts]
    twice = texts(worker.answer([*prompts, *again], 1))
    assert twice[:3] == first and all(not {*one} <= {*other} for one, other in zip(twice[3:], first, strict=True)), "a row is drawn twice"
    moved = [PromptRow(prompt.row + 1, prompt.where, prompt.sample) for prompt in prompts]
    assert texts(worker.answer(moved, 1)) != first and len({*first[0]}) > 1
    assert texts(opened()[0].answer(prompts, 1)) == first


def test_samples_have_what_training_needs(opened: Any) -> None:
    worker, prompts = opened(objective="dapo")
    for prompt, rollout in zip(prompts, worker.answer(prompts, 1), strict=True):
        assert len(rollout.samples) == 4 and len(rollout.record["answers"]) == 4
        total = [answer["reward"] for answer in rollout.record["answers"]]
        assert sum(answer["advantage"] for answer in rollout.record["answers"]) == pytest.approx(0, abs=1e-9)
        for sample, answer in zip(rollout.samples, rollout.record["answers"], strict=True):
            asked = len(prompt.sample["ids"])
            assert sample["ids"][:asked].tolist() == prompt.sample["ids"].tolist()
            assert sample["supervised"].tolist() == [False] * asked + [True] * answer["tokens"]
            assert len(sample["rollout"]) == answer["tokens"] == int(sample["targets"])
            assert float(sample["metric/reward"]) == pytest.approx(answer["reward"])
            assert answer["reward"] == pytest.approx(2 * answer["rewards"]["exact_match"] + answer["rewards"]["length"])
            assert answer["rewards"]["length"] == pytest.approx(max(0, 1 - answer["tokens"] / 12))
            assert float(sample["metric/unfinished"]) == (not answer["ended"]) and float(sample["metric/answer_tokens"]) == answer["tokens"]
        assert rollout.record["flat"] == (max(total) == min(total))
        assert rollout.record["prompt"].startswith("<|im_start|>user\n")


def test_an_evaluation_has_one_greedy_answer_and_no_advantages(opened: Any) -> None:
    worker, prompts = opened()
    found = worker.answer(prompts, None)
    assert texts(found) == texts(opened(seed=9)[0].answer(prompts, None)) and [len(one) for one in texts(found)] == [1, 1, 1]
    assert all("rollout" not in sample and "metric/flat_groups" not in sample for one in found for sample in one.samples)


@pytest.mark.parametrize("step", [1, None])
def test_a_filler_has_the_tensors_of_an_answer(opened: Any, step: int | None) -> None:
    worker, prompts = opened()
    (filler,), (sample, *_) = worker.make_filler(prompts[0].sample, step), worker.answer(prompts[:1], step)[0].samples
    assert {name: each.dtype for name, each in filler.items()} == {name: each.dtype for name, each in sample.items()}
    assert "advantage" not in filler or float(filler["advantage"]) == 0


def test_a_failed_reward_leaves_its_answer_out_of_the_group(opened: Any) -> None:
    """The others are compared with each other; with on_failure zero they are compared with the 0, too."""
    for on_failure, expected in (("leave_out", [1 / 2, 0.0, -1 / 2, 0.0]), ("zero", [3 / 4, -1 / 4, -1 / 4, -1 / 4])):
        rewards = Rewards.model_validate({"exact_match": {}, "length": {"weight": 0.0}, "on_failure": on_failure}, strict=False)
        worker, prompts = opened(objective="dr_grpo", rewards=rewards)
        encode = families.tokenizer("chatml").encode
        found = [GeneratedTokens([*encode(text), 0], [0.0] * (len(encode(text)) + 1), True) for text in ("no", "fail", "yes", "fail")]
        worker._generator.generate = lambda *_, found=found: found
        right = worker._scorer._compute

        def compute(name: str, answer: Any, right: Any = right) -> float:
            if answer.text == "fail" and name == "exact_match":
                raise RewardError("it broke")
            return float(right(name, answer))

        worker._scorer._compute = compute
        (rollout,) = worker.answer(prompts[:1], 1)
        assert [answer["advantage"] for answer in rollout.record["answers"]] == pytest.approx(expected), on_failure
        assert [float(sample["advantage"]) for sample in rollout.samples] == pytest.approx(expected)
        assert [float(sample["metric/failed_rewards"]) for sample in rollout.samples] == [0, 1, 0, 1]
        assert not rollout.can_be_replaced and not rollout.record["flat"]


@pytest.mark.parametrize(("objective", "tokens"), [("grpo", 1), ("dr_grpo", 1), ("dapo", 4)])
def test_an_answer_left_out_weighs_nothing_and_a_group_of_them_is_not_replaced(opened: Any, objective: str, tokens: int) -> None:
    """Otherwise each prompt would be answered and judged again while a judge is down."""
    worker, prompts = opened(objective=objective, dynamic_sampling=2)
    worker._generator.generate = lambda *_: [GeneratedTokens([5, 6, 7, 0], [0.0] * 4, True)] * 4
    for failing, unknown in (({0, 2}, [True, False, True, False]), ({*range(4)}, [True] * 4)):
        numbers = iter(range(4))

        def compute(name: str, _: Any, numbers: Any = numbers, failing: set[int] = failing) -> float:
            if name == "exact_match" and next(numbers) in failing:
                raise RewardError("it broke")
            return 0.0

        worker._scorer._compute = compute
        (rollout,) = worker.answer(prompts[:1], 1)
        assert [float(sample["weight"]) == 0 for sample in rollout.samples] == unknown
        assert [int(sample["targets"]) for sample in rollout.samples] == [0 if each else tokens for each in unknown]
        assert rollout.can_be_replaced == (not all(unknown)), "without any known reward nothing is known of the prompt"


def test_a_group_without_contrast_can_be_replaced_and_a_replacement_gets_other_answers(opened: Any) -> None:
    """Rewards for length are no contrast of right and wrong, as in the paper of DAPO."""
    rewards = Rewards.model_validate({"exact_match": {}, "overlong": {"tokens": 8}}, strict=False)
    worker, prompts = opened(rewards=rewards, dynamic_sampling=2)
    encode, generate = families.tokenizer("chatml").encode, worker._generator.generate
    for texts_of_group, replaced in ((("yes", "yes, yes", "a", "b"), True), (("no", "yes, yes", "a", "b"), False)):
        found = [GeneratedTokens([*encode(text), 0], [0.0] * (len(encode(text)) + 1), True) for text in texts_of_group]
        worker._generator.generate = lambda *_, found=found: found
        (rollout,) = worker.answer(prompts[:1], 1)
        assert rollout.can_be_replaced == replaced and not rollout.record["flat"], "the punishment differs"
        assert [float(sample["metric/replaced_groups"]) for sample in rollout.samples] == [0] * 4
    worker._generator.generate = generate
    (own,), (other,) = (worker.answer([replace(prompts[0], replaces=rows)], 1) for rows in ((), (2, 1)))
    assert texts([own]) != texts([other]), "the same row replaces another one in the same step"
    assert [float(sample["metric/replaced_groups"]) for sample in other.samples] == [2] * 4
    assert worker.make_filler(prompts[0].sample, 1)[0].keys() == other.samples[0].keys()


def test_no_prompts_have_no_answers(opened: Any) -> None:
    assert opened()[0].answer([], 1) == []
