"""llm_reward through the engine: labels, plan, data, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.training import setup
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.llm_reward.recipe import RECIPE, load, make_state, prepare
from tests.finetune.tiny import let_go
from tests.recipes.llm_reward.tiny_scorers import CLASSES, LABELLED, LORA, PAIRS, make_config, train_here


def test_a_run_learns_and_evaluates(reward_run: Path, class_run: Path) -> None:
    evaluations: list[dict[str, float]] = []
    for run, name in ((reward_run, "preference"), (class_run, "cross_entropy")):
        events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        steps, evaluations = ([event for event in events if event["event"] == kind] for kind in ("step", "evaluation"))
        assert steps[-1][name] < steps[0][name] == steps[0]["loss"] and evaluations[-1]["val/accuracy"] > 0.5
    assert {"val/accuracy_0", "val/accuracy_1", "val/accuracy_2"} < evaluations[-1].keys() and not any(
        "share" in key for key in evaluations[-1]
    )


def test_the_head_depends_on_the_seed_alone(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate(("1", "1", "2")):
        config = make_config(tmp_path, ("run.seed", seed), ("run.dir", str(tmp_path / f"run{number}")), *(LORA if number == 1 else ()))
        let_go(config.run.dir)
        training, _ = setup.build(config, RECIPE, join((), tmp_path))
        head: Any = training.model.get_parameter("score.weight")
        found.append(head.detach().full_tensor().clone())
        assert head.requires_grad
        leave()
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_classes_are_those_of_the_data_and_a_plan_without_data_has_two(tmp_path: Path) -> None:
    config = make_config(tmp_path, *CLASSES)
    prepare(config)
    loaded = load(config)
    assert loaded.processor.labels == ("bad", "good", "open") and "3 classes: 0 bad, 1 good, 2 open" in loaded.remarks
    assert loaded.model.get_parameter("score.weight").shape == (3, 32)
    without = config.data.model_copy(update={"train": None, "val": None})
    assert make_state(config.options, without, config.model).labels == ["0", "1"]


def test_one_class_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='has 1 different values of "label"; a classifier needs 2'):
        train_here(tmp_path, *CLASSES, rows=LABELLED[:4])


def test_a_base_whose_classes_have_no_numbers_is_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, *CLASSES, ("options.head", "base"))
    place = tmp_path / "base" / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "id2label": {"0": "bad", "2": "good"}}))
    with pytest.raises(UserError, match=r"base/config\.json: id2label has no name for output 1 of 2"):
        prepare(config)


def test_a_bad_row_is_named_and_a_long_one_is_dropped_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = {**PAIRS[0], "rejected": PAIRS[0]["chosen"]}
    with pytest.raises(UserError, match=r"rows\.jsonl:2: chosen and rejected are the same|rows\.jsonl:2: .*same tokens"):
        train_here(tmp_path, rows=[PAIRS[1], same])
    long = {**PAIRS[0], "rejected": [{"role": "assistant", "content": "no " * 80}]}
    with pytest.raises(UserError, match=r"rows\.jsonl:2: \d+ positions do not fit"):
        train_here(tmp_path, rows=[PAIRS[1], long])
    train_here(tmp_path, ("data.too_long", "drop"), ("train.steps", "1"), rows=[*PAIRS, long])
    assert "dropped 1 of 5 rows" in capsys.readouterr().out


@pytest.mark.parametrize("packing", ["true", "false"])
def test_plan_counts_the_head_and_not_the_output_layer(tmp_path: Path, packing: str) -> None:
    estimates = {
        name: estimate_run(make_config(tmp_path, ("data.packing", packing), *given), RECIPE)
        for name, given in (("full", ()), ("lora", LORA), ("classes", CLASSES))
    }
    parameters = {name: estimate.outline.trained for name, estimate in estimates.items()}
    assert parameters["classes"] - parameters["full"] == 2 * 32 and parameters["lora"] < parameters["full"] / 2
    assert all(estimate.activations(90, "none", 1).peak > 0 for estimate in estimates.values())
    assert any("one reward for a sequence" in remark for remark in estimates["full"].remarks)


def test_a_model_whose_packed_sequences_see_each_other_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path)
    let_go(config.run.dir)
    training, _ = setup.build(config, RECIPE, join((), tmp_path))
    RECIPE.verify(training.model, training.loaded, config)
    monkeypatch.setattr(varlen_attention, "packed_row", lambda bounds, lengths, open_row=varlen_attention.packed_row: open_row(None, ()))
    with pytest.raises(UserError, match="packed"):
        RECIPE.verify(training.model, training.loaded, config)
    leave()
