"""llm_grpo through the engine: what a run writes, that its parts depend on nothing else, `plan`, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import Config, resolve
from overtone.finetune.data.batching import MicroBatch, Place, Step
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import base_kl_loss
from overtone.finetune.monitoring import stop_requests
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.monitoring.run_records import ROLLOUTS, read_log
from overtone.finetune.planning.memory import Arrangement, estimate_memory
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.training import setup
from overtone.finetune.training.evaluation import evaluate, make_micro_batches
from overtone.finetune.training.rollout_page import PAGE
from overtone.finetune.training.step import Training, make_loader, train_step
from overtone.recipes.language.rollout_generation import check_base
from overtone.recipes.llm_grpo import group_answering
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.llm_grpo.recipe import RECIPE, show
from overtone.recipes.llm_grpo.rewards.answer_checks import RewardError
from overtone.recipes.llm_grpo.rewards.reward_scoring import RewardScorer
from tests.finetune import tiny
from tests.recipes.llm_sft import tiny_runs
from tests.recipes.policy.rollout_runs import run_here

ROWS = [{"prompt": [{"role": "user", "content": f"Number {count}?"}], "answer": str(count)} for count in range(6)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("loop") / "base")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()


def config_of(base: Path, folder: Path, **overrides: object) -> Config[Options]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given = {
        **{"run.dir": folder / "run", "model.source": base, "data.train": folder / "rows.jsonl", "train.steps": 2},
        **{"train.precision": "fp32", "train.micro_tokens": 400, "train.global_batch_tokens": 10**6, "log.trackers": "[]"},
        **{"data.packing": "true", "train.lr": "1e-3", "log.every": 1, "train.warmup": 0.0, "train.schedule": "constant"},
        **{"options.group": 4, "options.max_new_tokens": 8, "options.rollout_batch": 4, "options.rewards.length.weight": 1},
        "options.rewards.regular_expression": "{pattern: '.*[aeiou].*', weight: 2}",
        **overrides,
    }
    return resolve("llm_grpo", Options, [], [(key, str(value)) for key, value in given.items()])


def test_a_run_records_its_rollouts_and_measures(base: Path, tmp_path: Path, world: World) -> None:
    val = {"data.val": tmp_path / "rows.jsonl", "eval.every": 2, "eval.at_start": "true"}
    steps = run_here(config_of(base, tmp_path, **val, **{"options.objective": "dapo"}), RECIPE, world)
    lines = [json.loads(line) for line in (tmp_path / "run" / ROLLOUTS).read_text().splitlines()]
    places = [(line["step"], line["row"].rpartition(":")[2]) for line in lines]
    assert places == [(step, str(row)) for step in (1, 2) for row in range(1, 7)]
    rewards = [answer["reward"] for line in lines[:6] for answer in line["answers"]]
    assert steps[0]["reward"] == pytest.approx(sum(rewards) / 24) and steps[0]["reward"] > 0
    assert steps[0]["reward"] == pytest.approx(steps[0]["reward_length"] + 2 * steps[0]["reward_regular_expression"])
    tokens = [answer["tokens"] for line in lines[:6] for answer in line["answers"]]
    assert steps[0]["answer_tokens"] == pytest.approx(sum(tokens) / 24)
    assert steps[0]["flat_groups"] == pytest.approx(sum(line["flat"] for line in lines[:6]) / 6)
    assert 0 < steps[0]["mismatch"] < 1e-5 and steps[0]["clipped"] == 0 and steps[0]["rollout_seconds"] > 0
    evaluations = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [0, 2]
    assert evaluations[0]["val/loss"] == -evaluations[0]["val/reward"] and "val/mismatch" not in evaluations[0]
    page = (tmp_path / "run" / PAGE).read_text()
    assert "Step 2" in page and "Step 1" in page and "rows.jsonl:6" in page


def test_groups_without_variance_are_replaced_and_recorded(base: Path, tmp_path: Path, world: World) -> None:
    """The pattern is met by some answers, so that some groups have variance and some have none."""
    given = {"options.dynamic_sampling": 2, "options.rewards.length": "null", "options.group": 2}
    steps = run_here(config_of(base, tmp_path, **given, **{"options.rewards.overlong": "{tokens: 4}"}), RECIPE, world)
    lines = [json.loads(line) for line in (tmp_path / "run" / ROLLOUTS).read_text().splitlines()]
    assert [(line["step"], [*line["replaces"], line["row"]][0].rpartition(":")[2]) for line in lines] == [
        (step, str(row)) for step in (1, 2) for row in range(1, 7)
    ], "in the order of the step's own prompts"
    first, counts = lines[:6], [len(line["replaces"]) for line in lines[:6]]
    assert min(counts) == 0 < max(counts) <= 2
    assert steps[0]["replaced_groups"] == pytest.approx(sum(counts) / 6)
    for line in first:
        right = {answer["rewards"]["regular_expression"] for answer in line["answers"]}
        assert len(right) == 2 or len(line["replaces"]) == 2, "the bound"
    rewards = [answer["reward"] for line in first for answer in line["answers"]]
    assert steps[0]["reward"] == pytest.approx(sum(rewards) / 12) and 0 < steps[0]["mismatch"] < 1e-5, "the last answers are trained"
    assert f"In the place of {tmp_path}/rows.jsonl:" in (tmp_path / "run" / PAGE).read_text()


@pytest.mark.slow
@pytest.mark.ci
def test_micro_batches_change_no_number(base: Path, tmp_path: Path, world: World) -> None:
    runs = []
    for number, own in enumerate(({}, {"train.micro_tokens": 130}, {"data.packing": "false", "train.micro_tokens": 300})):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(run_here(config_of(base, folder, **{**own, "options.kl_weight": 0.1}), RECIPE, world))
    for other in runs[1:]:
        for one, expected in zip(other, runs[0], strict=True):
            for name in ("loss", "grad_norm", "reward", "kl", "flat_groups"):
                assert one[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_that_is_repeated_from_a_checkpoint_leaves_no_duplicates(base: Path, tmp_path: Path, world: World) -> None:
    """The lines after the checkpoint are of steps that are taken again; half a line is of a launch that was killed while it wrote."""
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = run_here(config_of(base, whole, **{"train.steps": 3}), RECIPE, world)
    run_here(config_of(base, tmp_path, **{"train.steps": 1}), RECIPE, world)
    log = tmp_path / "run" / ROLLOUTS
    lines = (whole / "run" / ROLLOUTS).read_text().splitlines(keepends=True)
    log.write_text(log.read_text() + "".join(lines[6:14]).replace(str(whole), str(tmp_path)) + lines[14][:50])
    found = run_here(config_of(base, tmp_path, **{"train.steps": 3}), RECIPE, world)
    assert log.read_text().replace(f"{tmp_path}/rows", f"{whole}/rows") == "".join(lines)
    for name in ("loss", "grad_norm", "reward", "mismatch"):
        assert [step[name] for step in found] == [step[name] for step in expected]


def test_a_step_with_another_policy_than_the_rollouts_is_not_applied(
    base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With old weights the answers are those of an older policy, which the mismatch shows."""
    monkeypatch.setattr(group_answering.GroupAnswering, "update_weights", forget_updates())
    with pytest.raises(UserError, match="nats for a token on average, above options.max_mismatch: 0.0001; the update was not applied"):
        run_here(config_of(base, tmp_path, **{"options.max_mismatch": 1e-4, "train.lr": "1e-2"}), RECIPE, world)
    tiny.let_go(tmp_path / "run")
    log = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "step"]
    assert [event["step"] for event in log] == [1]


def test_dropout_of_the_base_is_off(base: Path, tmp_path: Path, world: World) -> None:
    """Generation has none, so that with dropout the ratios would be those of another policy."""
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.3}))
    val = {"data.val": tmp_path / "rows.jsonl", "eval.every": 1}  # after an evaluation, too
    steps = run_here(config_of(folder, tmp_path, **val), RECIPE, world)
    assert len(steps) == 2 and all(step["mismatch"] < 1e-5 for step in steps)
    assert "dropout of the base is off, as answers are generated without it: attention_dropout 0.3" in (
        RECIPE.load(config_of(folder, tmp_path)).remarks
    )


def test_a_row_that_a_mixture_draws_twice_gets_other_answers(base: Path, tmp_path: Path, world: World) -> None:
    (tmp_path / "few.jsonl").write_text(json.dumps({"prompt": "Good day.", "answer": "1"}) + "\n")
    mix = f"[{{path: {tmp_path}/few.jsonl, weight: 1}}, {{path: {tmp_path}/rows.jsonl, weight: 1}}]"
    config = config_of(base, tmp_path, **{"train.steps": 1, "data.train": "null", "data.mix": mix})
    run_here(config, RECIPE, world)
    lines = [json.loads(line) for line in (tmp_path / "run" / ROLLOUTS).read_text().splitlines()]
    repeated = [[answer["text"] for answer in line["answers"]] for line in lines if line["row"].endswith("few.jsonl:1")]
    assert len(repeated) > 1 and len({*map(str, repeated)}) == len(repeated)


def test_an_update_that_is_not_finite_is_skipped(base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mismatch is not finite either, and does not end the run."""
    right, calls = group_answering.GroupAnswering._make_sample, list[int]()

    def spoil(self: Any, *given: Any) -> Any:
        calls.append(1)
        sample = right(self, *given)
        return {**sample, "rollout": sample["rollout"] * math.nan} if len(calls) == 1 else sample

    monkeypatch.setattr(group_answering.GroupAnswering, "_make_sample", spoil)
    steps = run_here(config_of(base, tmp_path, **{"train.skip_nonfinite": 1}), RECIPE, world)
    assert [step["step"] for step in steps] == [2]
    tiny.let_go(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    calls.clear()
    with pytest.raises(NotFiniteError, match="step 1: loss nan"):
        run_here(config_of(base, tmp_path), RECIPE, world)
    tiny.let_go(tmp_path / "run")


def test_a_loss_above_its_median_is_no_spike(base: Path, tmp_path: Path, world: World) -> None:
    """The loss is about 0, so that each larger one is a multiple of the median."""
    training, _ = setup.build(config_of(base, tmp_path, **{"train.spike": 1e6}), RECIPE, world)
    _, turns = next(make_loader(training, training.rows).iterate(iter([first_step(training)])))
    numbers = train_step(training, turns, 0, ((-1.0, 1.0),) * 50)
    assert numbers["loss"] > -1e6 and training.rollouts is not None
    training.rollouts.worker.close()
    tiny.let_go(tmp_path / "run")


def first_step(training: Training) -> Step:
    return Step((MicroBatch((0, 1), 1, 3, packed=True),), Place())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, r"its rotary positions \(dynamic\) depend on the longest request"),
        ({"layer_types": ["full_attention", "sliding_attention"], "model_type": "qwen3"}, None),
    ],
)
def test_a_base_without_running_batches_is_refused_before_its_weights_are_read(
    base: Path, tmp_path: Path, settings: dict[str, Any], problem: str | None
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    if problem is None:
        check_base(folder)
        return
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=f"no answers can be generated while it is trained: {problem}; choose another model"):
        check_base(folder)
    shutil.copy(base / "model.safetensors", folder)
    for find in (RECIPE.load, lambda config: estimate_run(config, RECIPE)):
        with pytest.raises(UserError, match=problem):
            find(config_of(folder, tmp_path))


def test_a_step_whose_answers_are_all_left_out_has_no_gradient(
    base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> float:
        raise RewardError("it broke")

    monkeypatch.setattr(RewardScorer, "_compute", fail)
    given = {"options.kl_weight": 0.1, "options.dynamic_sampling": 2, "options.rewards.length": "null", "train.micro_tokens": 130}
    steps = run_here(config_of(base, tmp_path, **given), RECIPE, world)
    assert [(step["loss"], step["grad_norm"], step["failed_rewards"], step["replaced_groups"]) for step in steps] == [(0, 0, 1, 0)] * 2


@pytest.mark.slow
@pytest.mark.ci
def test_other_rewards_are_refused_at_a_resume_and_functions_are_on_the_card(base: Path, tmp_path: Path, world: World) -> None:
    functions = tmp_path / "functions.py"
    functions.write_text("def vowels(answer, row):\n    return float('a' in answer)\n")
    given = {"options.rewards.functions": functions, "train.steps": 1}
    run_here(config_of(base, tmp_path, **given), RECIPE, world)
    with pytest.raises(UserError, match=r"recipe_state was \{'on_failure': 'leave_out'\}, now \{'on_failure': 'zero'\}"):
        setup.build(config_of(base, tmp_path, **given, **{"options.rewards.on_failure": "zero"}), RECIPE, world)
    tiny.let_go(tmp_path / "run")
    functions.write_text("def vowels(answer, row):\n    return float('e' in answer)\n")
    with pytest.raises(UserError, match=r"recipe_state was \{'rewards': \{'functions': '\w{16}'\}\}, now"):
        setup.build(config_of(base, tmp_path, **given), RECIPE, world)
    tiny.let_go(tmp_path / "run")
    state = RECIPE.load(config_of(base, tmp_path, **given)).state
    card = RECIPE.export(base, state, {}, "transformers")
    assert "length (1)" in str(card) and "functions of the user" in str(card)


def test_an_evaluation_fills_the_running_batch_and_needs_no_reference(
    base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    val = {"data.val": tmp_path / "rows.jsonl", "eval.at_start": "true", "train.micro_tokens": 130, "options.kl_weight": 0.1}
    training, _ = setup.build(config_of(base, tmp_path, **val), RECIPE, world)
    assert training.rollouts is not None and training.val is not None
    asked, right = list[int](), training.rollouts.worker.answer
    training.rollouts.worker.answer = lambda prompts, step: asked.append(len(prompts)) or right(prompts, step)  # type: ignore
    assert len(make_micro_batches(training.val, 130)) > 3
    monkeypatch.setattr(base_kl_loss, "predict_with_base", None)
    with stop_requests.StopRequests() as requests:
        assert evaluate(training, training.val, requests) is not None
    assert asked == [4, 2], "options.rollout_batch answers at once"
    training.rollouts.worker.close()
    tiny.let_go(tmp_path / "run")


def forget_updates() -> Any:
    right, calls = group_answering.GroupAnswering.update_weights, list[int]()

    def update(self: Any, weights: Any) -> None:
        found = [*weights]
        if not calls:
            right(self, found)
        calls.append(1)

    return update


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"options.rewards": "{length: null, regular_expression: null}"}, "options.rewards is empty"),
        ({"options.rewards": "{length: null, regular_expression: null, overlong: {tokens: 2}}"}, "options.rewards has only overlong"),
        ({"model.quantization": "nf4", "model.lora": "true"}, "model.quantization does not work with llm_grpo, which copies the weights"),
        ({"options.rewards.numeric_answer.weight": "1", "data.train": "texts"}, r"texts\.jsonl:1: .*numeric_answer needs 'answer'"),
    ],
)
def test_what_does_not_work_is_refused_before_the_first_step(
    base: Path, tmp_path: Path, world: World, overrides: dict[str, str], problem: str
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    given = {key: str(tmp_path / "texts.jsonl") if value == "texts" else value for key, value in overrides.items()}
    tiny.let_go(tmp_path / "run")
    with pytest.raises(UserError, match=problem):
        setup.build(config_of(base, tmp_path, **given), RECIPE, world)
    tiny.let_go(tmp_path / "run")


def test_plan_knows_the_memory_of_rollouts_and_of_the_reference(base: Path, tmp_path: Path) -> None:
    found = {
        name: estimate_run(config_of(base, tmp_path, **own), RECIPE)
        for name, own in (
            ("plain", {}),
            ("kl", {"options.kl_weight": 0.1}),
            ("lora", {"model.lora": "true", "options.kl_weight": 0.1}),
            ("more", {"options.rollout_batch": 8}),
        )
    }
    assert [name for name, one in found.items() if one.outline.with_base] == ["kl"]
    parameters = sum(weight.size for weight in found["plain"].outline.weights)
    keys = 2 * 2 * 2 * 8 * 512 * 4  # keys and values, layers, heads, their size, slots, answers
    assert found["plain"].outline.rollouts == found["lora"].outline.rollouts == 4 * (parameters + keys)
    assert found["more"].outline.rollouts == 4 * (parameters + 2 * keys)
    for name, said in (("plain", "reference: none"), ("kl", "a frozen copy of the base"), ("lora", "adapters switched off")):
        assert any(said in remark for remark in found[name].remarks) and any("rollouts: a copy" in remark for remark in found[name].remarks)
    one = found["plain"]
    memory = estimate_memory(one.outline, Arrangement("ddp", 1), one.activations(400, "none", 1), 4)
    assert memory.terms["rollouts"] == one.outline.rollouts and memory.lasting > one.outline.rollouts


def test_a_prompt_is_shown(base: Path, tmp_path: Path) -> None:
    processor = RECIPE.load(config_of(base, tmp_path)).processor
    assert "Number 0?" in show(RECIPE.read(ROWS[0], processor, tmp_path), processor)
