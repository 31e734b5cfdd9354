"""Groups of clips: keys of their randomness, rewards, samples and records, and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import PromptRow, Rollout, RolloutSettings
from overtone.recipes.policy.rollout_samples import LOSS
from overtone.recipes.qwen3_tts.model.base_voices import read_base_voices
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.intelligibility import Transcription
from overtone.recipes.voice_grpo.clip_samples import collate, measure_length
from overtone.recipes.voice_grpo.group_speaking import GroupSpeaking
from overtone.recipes.voice_grpo.options import ClipJudge, Options
from overtone.recipes.voice_grpo.recipe import make_processor
from overtone.recipes.voice_grpo.state import VoicePolicyState
from overtone.recipes.voice_grpo.text_rows import read_row
from tests.recipes.voice_clone.conftest import Ready
from tests.recipes.voice_grpo.clip_rewards import ROWS, stand_in

Open = Callable[..., tuple[GroupSpeaking, list[PromptRow]]]


@pytest.fixture
def opened(exported: Path, fresh: Ready, recordings: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    def open_worker(seed: int = 3, **given: Any) -> tuple[GroupSpeaking, list[PromptRow]]:
        stand_in(monkeypatch)
        options = Options(**{"judge": ClipJudge(recordings=recordings), "group": 3, "max_seconds": 1.0, "rollout_batch": 4, **given})
        processor = make_processor(exported, read_base_voices(exported), options)
        voices = fresh.loaded.state.as_json()
        texts = {"name": "texts", "sha256": "0", "texts": {"anna": 3, "bert": 3}, "languages": ["english"]}
        settings = {"objective": "grpo", "group": 3, "max_seconds": 1.0, "clip_low": 0.2, "clip_high": 0.2, "kl_weight": 0.0}
        state = VoicePolicyState.model_validate({**voices, **settings, "texts": texts, "rewards": {}, "judge": {}})
        loaded: Any = SimpleNamespace(processor=processor, base=exported, buffers=fresh.loaded.buffers, state=state)
        worker = GroupSpeaking(loaded, options, RolloutSettings(seed, torch.float32, torch.device("cpu")))
        worker.update_weights(fresh.model.named_parameters())
        return worker, [PromptRow(number, f"texts.jsonl:{number}", read_row(row, processor)) for number, row in enumerate(ROWS)]

    return open_worker


def list_codes(rollouts: list[Rollout]) -> list[list[list[int]]]:
    return [[sample["codes"].flatten().tolist() for sample in rollout.samples] for rollout in rollouts]


def test_a_clip_is_keyed_by_seed_step_row_and_number(opened: Open) -> None:
    worker, prompts = opened()
    first = list_codes(worker.answer(prompts[:3], 1))
    assert list_codes(worker.answer(prompts[2::-1], 1))[::-1] == first and list_codes(worker.answer(prompts[1:2], 1)) == first[1:2]
    assert all(len({tuple(clip) for clip in group}) == 3 for group in first)
    assert list_codes(worker.answer([replace(prompts[0], row=9)], 1)) != first[:1], "a row with the same text"
    assert list_codes(worker.answer(prompts[:1], 2)) != first[:1] and list_codes(opened(seed=4)[0].answer(prompts[:1], 1)) != first[:1]


def test_a_record_says_what_a_sample_is_trained_by(opened: Open) -> None:
    worker, prompts = opened()
    rollouts = worker.answer(prompts, 1)
    assert [rollout.record["prompt"] for rollout in rollouts] == [row["text"] for row in ROWS]
    for rollout in rollouts:
        answers = rollout.record["answers"]
        assert sum(answer["advantage"] for answer in answers) == pytest.approx(0, abs=1e-6)
        for sample, answer in zip(rollout.samples, answers, strict=True):
            weights = {"intelligibility": 2 / 3, "similarity": 1 / 3}
            expected = sum(weights.get(name, 1.0) * value for name, value in answer["rewards"].items())
            assert answer["reward"] == pytest.approx(expected) == pytest.approx(float(sample["metric/reward"]))
            assert len(sample["rollout"]) == answer["tokens"] and float(sample["advantage"]) == pytest.approx(answer["advantage"])
            assert float(sample["metric/unfinished"]) == (not answer["ended"])
            frames = int(sample["frame_mask"].sum())
            assert answer["tokens"] == 16 * frames + answer["ended"] and measure_length(sample) == len(sample["text"]) > frames
    assert any(not rollout.record["flat"] for rollout in rollouts)
    assert len({answer["text"] for rollout in rollouts for answer in rollout.record["answers"]}) > 2


def test_a_cut_off_clip_is_punished_and_does_not_learn_to_end(opened: Open) -> None:
    worker, prompts = opened(max_seconds=0.25)
    (rollout,) = worker.answer(prompts[:1], 1)
    cut = [number for number, answer in enumerate(rollout.record["answers"]) if not answer["ended"]]
    assert cut
    for number in cut:
        assert rollout.record["answers"][number]["rewards"]["ending"] == -1
        assert int((rollout.samples[number]["labels"] != -100).sum()) == 3, "three frames, and no end"


def test_an_evaluation_speaks_once_and_trains_nothing(opened: Open) -> None:
    worker, prompts = opened()
    rollouts = worker.answer(prompts, None)
    assert all(len(rollout.samples) == 1 and "rollout" not in rollout.samples[0] for rollout in rollouts)
    assert list_codes(rollouts) == list_codes(worker.answer(prompts, None))
    batch = collate([sample for rollout in rollouts for sample in rollout.samples])
    assert batch.targets[LOSS] == batch.targets["reward"] == len(prompts) and "flat_groups" not in batch.targets


@pytest.mark.parametrize("step", [1, None])
def test_a_filler_has_the_tensors_of_a_clip(opened: Open, step: int | None) -> None:
    worker, prompts = opened()
    (filler,) = worker.make_filler(prompts[0].sample, step)
    sample = worker.answer(prompts[:1], step)[0].samples[0]
    assert filler.keys() == sample.keys() and all(filler[name].dtype == sample[name].dtype for name in sample)
    assert collate([filler]).tensors.keys() == collate([sample]).tensors.keys()


def test_a_text_that_the_judge_cannot_judge_is_named_before_anything_is_spoken(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, prompts = opened()
    monkeypatch.setattr(worker._generator, "generate", None)

    def refuse(*_: object) -> None:
        raise UserError("'english' is not a language of this model")

    monkeypatch.setattr(intelligibility, "require_languages", refuse)
    with pytest.raises(UserError, match="^texts.jsonl:0: 'english' is not a language"):
        worker.answer(prompts, 1)


def test_a_failed_recognizer_is_recorded(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, prompts = opened()
    monkeypatch.setattr(intelligibility, "transcribe_clips", lambda _, clips, __: [Transcription("", "no memory")] * len(clips))
    (rollout,) = worker.answer(prompts[:1], 1)
    for answer in rollout.record["answers"]:
        assert answer["rewards"]["intelligibility"] == 0 and "the recognizer failed" in answer["failures"][0]
    assert np.isfinite([answer["reward"] for answer in rollout.record["answers"]]).all()
