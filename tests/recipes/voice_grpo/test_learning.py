"""voice_grpo teaches what is rewarded: the rewarded codes become more frequent in both levels of codebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from overtone.finetune.distributed.process_group import World, join, leave
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts
from overtone.recipes.speech.preferences.speech_judge import SpeechMeasures
from overtone.recipes.speech.selection.speech_endings import SpeechEnding
from overtone.recipes.voice_grpo import group_speaking
from overtone.recipes.voice_grpo.recipe import RECIPE
from tests.recipes.policy.rollout_runs import run_here
from tests.recipes.voice_grpo.clip_rewards import configure, stand_in

STEPS = 12


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()


class EvenCodesJudge:
    """Stands in for the judge: the reward of a clip is the share of even codes in some codebooks."""

    asr = None

    def __init__(self, codebooks: slice) -> None:
        self.codebooks = codebooks

    def check(self, item: Item) -> None:
        """Every text can be judged."""

    def measure_takes(self, takes: Sequence[tuple[np.ndarray, bool]], _: Item) -> list[SpeechMeasures]:
        return [self.measure(codes, ended) for codes, ended in takes]

    def measure(self, codes: np.ndarray, ended: bool) -> SpeechMeasures:
        return SpeechMeasures(
            transcript="",
            errors=ErrorCounts(1, 1, 1, 1),
            similarity=float(np.mean(codes[:, self.codebooks] % 2 == 0)),
            sound=AudioMeasures(len(codes) / 12.5, 0.0, 0.0),
            ending=SpeechEnding(0.1, -40.0),
            ended=ended,
            expected_seconds=len(codes) / 12.5,
            repetition=0.0,
        )


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    ("codebooks", "rise"), [(slice(0, 1), 0.2), (slice(1, 16), 0.03)], ids=["codebook 0", "codebooks 1 to 15, each a small part of it"]
)
def test_rewarded_codes_become_more_frequent(
    exported: Path, recordings: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, codebooks: slice, rise: float
) -> None:
    stand_in(monkeypatch)
    silent_codec = SimpleNamespace(load=lambda _: SimpleNamespace(decode=lambda codes: codes))
    monkeypatch.setattr(group_speaking, "QwenCodec", lambda _: silent_codec)
    monkeypatch.setattr(group_speaking, "open_judge", lambda *_: EvenCodesJudge(codebooks))
    given = {"options.rewards": "{intelligibility: 0, ending: 0}", "options.group": 6, "train.steps": STEPS, "train.lr": "4e-3"}
    sizes = {"train.global_batch_tokens": 2000, "train.micro_tokens": 600}
    rewards = [step["reward"] for step in run_here(configure(exported, recordings, tmp_path, **given, **sizes), RECIPE, world)]
    assert abs(rewards[0] - 0.5) < 0.15, "an untrained model prefers neither kind"
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + rise
