"""voice_grpo through the engine: what a run writes, `plan`, the export, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import ROLLOUTS, read_log
from overtone.finetune.planning.data_preview import preview_data
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import REFERENCE
from overtone.finetune.training import setup
from overtone.recipes.policy.rollout_samples import MISMATCH
from overtone.recipes.voice_grpo import group_speaking
from overtone.recipes.voice_grpo.recipe import RECIPE
from tests.finetune import tiny
from tests.recipes.policy.rollout_runs import run_here
from tests.recipes.voice_grpo.clip_rewards import ROWS, configure, stand_in


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()


@pytest.fixture(autouse=True)
def judge(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def test_a_run_records_its_clips_and_measures(exported: Path, recordings: Path, tmp_path: Path, world: World) -> None:
    val = {"data.val": tmp_path / "texts.jsonl", "eval.every": 2, "eval.at_start": "true", "options.kl_weight": 0.1}
    steps = run_here(configure(exported, recordings, tmp_path, **val), RECIPE, world)
    lines = [json.loads(line) for line in (tmp_path / "run" / ROLLOUTS).read_text().splitlines()]
    assert {line["step"] for line in lines} == {1, 2} and len(lines) >= 4
    for step in steps:
        own = [answer for line in lines if line["step"] == step["step"] for answer in line["answers"]]
        assert step["reward"] == pytest.approx(sum(answer["reward"] for answer in own) / len(own), rel=1e-5)
        assert step["reward_ending"] == pytest.approx(sum(answer["rewards"]["ending"] for answer in own) / len(own), abs=1e-6)
        assert 0 < step["mismatch"] < 1e-5 and step["clipped"] == 0 and step["seconds"] > 0 and step["grad_norm"] > 0
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6) and steps[1]["kl"] > 1e-6
    evaluations = [event for event in read_log(tmp_path / "run" / "log.jsonl") if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [0, 2]
    assert evaluations[0]["val/loss"] == -evaluations[0]["val/reward"] and "val/mismatch" not in evaluations[0]


def test_old_weights_are_noticed(exported: Path, recordings: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With old weights the clips are those of an older policy, which the mismatch shows."""
    update = group_speaking.GroupSpeaking.update_weights
    calls = list[int]()

    def forget(self: Any, weights: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            update(self, weights)
        else:
            list(weights)

    monkeypatch.setattr(group_speaking.GroupSpeaking, "update_weights", forget)
    with pytest.raises(UserError, match="above options.max_mismatch: 0.0001; the update was not applied"):
        run_here(configure(exported, recordings, tmp_path, **{"options.max_mismatch": 1e-4, "train.lr": "1e-2"}), RECIPE, world)
    tiny.let_go(tmp_path / "run")


def test_a_plan_needs_no_weights_and_counts_the_copy(exported: Path, recordings: Path, tmp_path: Path) -> None:
    config = configure(exported, recordings, tmp_path, **{"options.kl_weight": 0.1})
    assert RECIPE.sketch is not None
    sketched = RECIPE.sketch(config)
    batch = sketched.batch(2, 90)
    assert batch.tensors["text"].shape == (6, 30) and batch.tensors[REFERENCE].shape == (batch.targets[MISMATCH],)
    assert RECIPE.read(ROWS[0], sketched.processor(), Path())["prompt"].ndim == 1
    assert any("Whisper a-stand-in" in remark for remark in sketched.loaded.remarks)
    weights = sum(each.numel() for each in sketched.loaded.model.parameters())
    found = estimate_run(config, RECIPE)
    assert RECIPE.rollouts is not None
    assert RECIPE.rollouts.count_bytes(sketched.loaded, config.options, 4, 300) > 4 * weights
    assert found is not None


def test_a_plan_reads_the_texts(exported: Path, recordings: Path, tmp_path: Path) -> None:
    config = configure(exported, recordings, tmp_path)
    assert RECIPE.sketch is not None
    found = preview_data(config, RECIPE, RECIPE.sketch(config).processor())
    assert found.problems == () and found.rows == len(ROWS)


def test_an_export_keeps_all_voices_and_says_what_was_rewarded(exported: Path, recordings: Path, tmp_path: Path) -> None:
    loaded = RECIPE.load(configure(exported, recordings, tmp_path))
    plan = RECIPE.export(loaded.base, loaded.state, loaded.buffers, "custom_voice")
    voices, before = json.loads(plan.files["voices.json"]), json.loads((exported / "voices.json").read_text())
    assert (voices["speakers"], voices["data"]) == (before["speakers"], before["data"])
    assert voices["texts"]["texts"] == {"anna": 3, "bert": 3} and voices["objective"] == "grpo"
    card = " ".join(plan.files["README.md"].decode().split())
    assert "texts.jsonl` (anna 3, bert 3)" in card and "groups of 3. Weights of the reward: intelligibility 1, similarity 0.5" in card
    shutil.copytree(exported, tmp_path / "rewarded")
    (tmp_path / "rewarded" / "voices.json").write_bytes(plan.files["voices.json"])
    assert RECIPE.load(configure(tmp_path / "rewarded", recordings, tmp_path)).state.as_json()["group"] == 3, "it is a base again"


def test_what_is_dropped_from_the_texts_is_counted_in_the_terminal_and_in_the_model_card(
    exported: Path, recordings: Path, tmp_path: Path
) -> None:
    config = configure(exported, recordings, tmp_path)
    rows = [{"text": text, "speaker": "anna"} for text in ("Who is **there**? 🙂", "Good day. 🙂", "It is late.")]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = RECIPE.load(config)
    assert RECIPE.sketch is not None
    for remarks in (loaded.remarks, RECIPE.sketch(config).loaded.remarks):
        assert remarks[-1] == "the texts are spoken without 2 emoji, 1 markup from 2 texts"
    card = " ".join(RECIPE.export(loaded.base, loaded.state, loaded.buffers, "custom_voice").files["README.md"].decode().split())
    assert "texts.jsonl` (anna 3), without 2 emoji, 1 markup from 2 texts, SHA-256" in card


def test_a_speaker_of_no_voice_is_refused(exported: Path, recordings: Path, tmp_path: Path) -> None:
    config = configure(exported, recordings, tmp_path)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Who is there?", "speaker": "carl"}) + "\n")
    with pytest.raises(UserError, match="speaker 'carl' of the texts is not one of the base's voices, anna, bert"):
        RECIPE.load(config)


def test_other_recordings_are_another_judge(exported: Path, recordings: Path, tmp_path: Path) -> None:
    first = RECIPE.load(configure(exported, recordings, tmp_path)).state.as_json()["judge"]
    shutil.copytree(recordings.parent, tmp_path / "others")
    same = RECIPE.load(configure(exported, tmp_path / "others" / recordings.name, tmp_path)).state.as_json()["judge"]
    (tmp_path / "others" / "low.flac").write_bytes((recordings.parent / "high.flac").read_bytes())
    other = RECIPE.load(configure(exported, tmp_path / "others" / recordings.name, tmp_path)).state.as_json()["judge"]
    assert first == same and first["recordings"] != other["recordings"]


def test_gradients_reach_every_parameter(exported: Path, recordings: Path, tmp_path: Path, world: World) -> None:
    training, _ = setup.build(configure(exported, recordings, tmp_path), RECIPE, world)
    batch = RECIPE.sketch(training.config).batch(1, 120) if RECIPE.sketch else None
    assert batch is not None
    tensors = {**batch.tensors, "advantages": torch.ones_like(batch.tensors["advantages"])}
    RECIPE.loss(training.model, type(batch)(tensors, batch.targets))["policy"].sum.backward()
    assert [name for name, each in training.model.named_parameters() if each.grad is None] == []
    tiny.let_go(tmp_path / "run")
