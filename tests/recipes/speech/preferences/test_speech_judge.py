"""Tests of `overtone.recipes.speech.preferences.speech_judge`, with the demo's recognizer and recordings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import soxr

from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.recipes.speech.evaluation import intelligibility, scoring, speaker_similarity
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.evaluation_items import Item, read_items
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts, Transcription
from overtone.recipes.speech.preferences import speech_judge
from overtone.recipes.speech.preferences.reward_weights import RewardWeights
from overtone.recipes.speech.preferences.speech_judge import SpeechJudge, SpeechMeasures, compute_reward, measure_repetition
from overtone.recipes.speech.selection.speech_endings import SpeechEnding

RATE = 24_000
GOOD = SpeechMeasures(
    transcript="a boat sails",
    errors=ErrorCounts(words=3, wrong_words=0, characters=12, wrong_characters=0),
    similarity=0.8,
    sound=AudioMeasures(seconds=1.2, silent_seconds=0.2, clipped_seconds=0.0),
    ending=SpeechEnding(silence=0.1, level=-40.0),
    ended=True,
    expected_seconds=1.0,
    repetition=0.0,
)
PLAIN = RewardWeights()


@pytest.fixture(scope="module")
def items() -> list[Item]:
    """Recordings of the demo's new voice, `rms`, and of those that its base knows."""
    folder = demo_models.data_folder() / "new_voice"
    own = read_items(folder / "held_out.jsonl", None, None, lambda _: None)[:4]
    known = [
        Item(f"{clip.parent.name}-{clip.stem}", "unknown words", clip.parent.name, "english", clip)
        for clip in (folder / "known").glob("[ks][al]*/0*.*")
    ]
    return [*own, *known]


@pytest.fixture(scope="module")
def judge(items: list[Item]) -> SpeechJudge:
    return speech_judge.load_judge(items, {"english"}, speaker_similarity.mfcc_encoder(), "whisper-demo-en")


def hack(name: str, items: list[Item]) -> np.ndarray:
    """What a model could return instead of the first text: samples [n] at 24 kHz."""
    honest, other = (scoring.read_clip(item.recording) for item in items[:2] if item.recording)
    word = honest[round(0.1 * RATE) : round(0.5 * RATE)]
    return {
        "silence": np.zeros(2 * RATE, np.float32),
        "nothing": np.zeros(0, np.float32),
        "the reference clip, repeated": np.tile(other, 2),
        "one word, very fast": soxr.resample(word, RATE, RATE // 3),
        "its text, repeated": np.tile(honest, 2),
    }[name]


@pytest.fixture(scope="module")
def honest(judge: SpeechJudge, items: list[Item]) -> SpeechMeasures:
    assert items[0].recording is not None
    return judge.measure(scoring.read_clip(items[0].recording), items[0], True)


@pytest.mark.parametrize("name", ["silence", "nothing", "the reference clip, repeated", "one word, very fast", "its text, repeated"])
def test_a_hacker_scores_far_below_an_honest_clip(name: str, judge: SpeechJudge, items: list[Item], honest: SpeechMeasures) -> None:
    assert compute_reward(honest, PLAIN) > 0.6 and honest.wer < 0.3
    found = judge.measure(hack(name, items), items[0], True)
    assert compute_reward(found, PLAIN) < compute_reward(honest, PLAIN) - 0.5, found
    assert any(speech_judge.rate_penalties(found).values()) or found.wer > 0.9


def test_each_weight_counts() -> None:
    best = replace(GOOD, similarity=1.0)
    assert compute_reward(best, PLAIN) == 1.0 and compute_reward(GOOD, PLAIN) == pytest.approx((1 + 0.5 * 0.8) / 1.5)
    assert compute_reward(GOOD, RewardWeights(similarity=0.0)) == 1.0 and compute_reward(GOOD, RewardWeights(intelligibility=0.0)) == 0.8
    faults = {
        "pace": replace(best, expected_seconds=4.0),
        "ending": replace(best, ended=False),
        "silence": replace(best, sound=AudioMeasures(10.0, 9.0, 0.0)),
        "clipping": replace(best, sound=AudioMeasures(1.2, 0.2, 0.6)),
        "repetition": replace(best, repetition=0.5),
    }
    for name, measures in faults.items():
        penalty = speech_judge.rate_penalties(measures)
        assert [key for key, value in penalty.items() if value] == [name]
        assert compute_reward(measures, PLAIN) == pytest.approx(1 - penalty[name])
        assert compute_reward(measures, RewardWeights(**{name: 0.25})) == pytest.approx(1 - 0.25 * penalty[name])


@pytest.mark.parametrize(
    ("seconds", "penalty"), [(1.0, 0.0), (1.49, 0.0), (1 / 1.49, 0.0), (3.1, 1.0), (0.3, 1.0), (math.sqrt(4.5), 0.5), (0.0, 1.0)]
)
def test_the_guard_of_the_pace_is_symmetric(seconds: float, penalty: float) -> None:
    found = replace(GOOD, sound=AudioMeasures(seconds, 0.0, 0.0))
    assert speech_judge.rate_penalties(found)["pace"] == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("expected", "transcribed", "share"),
    [
        ("a boat sails", "a boat sails", 0.0),
        ("a boat sails", "a boat sails a boat sails", 0.5),
        ("a boat sails", "a a a boat", 0.5),
        ("no no no", "no no no", 0.0),
        ("no no no", "no no no no no", 0.4),
        ("a boat", "", 0.0),
        ("the red boat and the red car", "the red boat and the red car", 0.0),
    ],
)
def test_a_repetition_follows_directly(expected: str, transcribed: str, share: float) -> None:
    assert measure_repetition(expected.split(), transcribed.split()) == pytest.approx(share)


def test_a_failed_transcript_is_all_wrong(judge: SpeechJudge, items: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intelligibility, "transcribe_clips", lambda *_: [Transcription("half of it", problem="out of memory")])
    found = judge.measure(np.ones(RATE, np.float32), items[0], True)
    assert found.transcript is None and found.wer == 1.0 == found.clipping


def test_clips_measured_together_have_the_measures_of_each_alone(judge: SpeechJudge, items: list[Item]) -> None:
    takes = [
        (scoring.read_clip(item.recording), ended) for item, ended in zip(items[:3], (True, False, True), strict=True) if item.recording
    ]
    takes.insert(1, (hack("nothing", items), True))
    together = judge.measure_takes(takes, items[0])
    assert together == [judge.measure(samples, items[0], ended) for samples, ended in takes]
    assert len({one.transcript for one in together}) == 4


def test_what_cannot_be_judged_is_refused(judge: SpeechJudge, items: list[Item]) -> None:
    with pytest.raises(UserError, match="speaker 'nobody': no recording with sound"):
        judge.check(replace(items[0], speaker="nobody"))
    with pytest.raises(UserError, match=r"text '\.\.\.' has no word"):
        judge.check(replace(items[0], text="..."))


def test_the_only_recording_of_a_speaker_is_not_compared_with_itself(judge: SpeechJudge, items: list[Item]) -> None:
    alone = SpeechJudge(
        judge.asr, judge.encoder, replace(judge.voices, clips={"rms": {items[0].recording: np.ones(40, np.float32)}}), judge.rates
    )
    with pytest.raises(UserError, match="no recording with sound"):
        alone.check(items[0])
    alone.check(replace(items[0], recording=None))
