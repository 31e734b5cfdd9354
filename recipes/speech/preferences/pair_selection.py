"""Pairs of clips from the judged clips of a text: the best good clip against the worst, if the margin between their rewards is clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import JsonValue

from overtone.finetune.storage.json_schema import JsonPart
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts
from overtone.recipes.speech.selection.speech_endings import SpeechEnding

from .reward_weights import RewardWeights
from .speech_judge import SpeechMeasures, compute_reward

MARGIN = 0.1
"""Least difference of the rewards of a pair by default."""
MAX_WER = 0.2
"""Largest WER of a chosen clip by default: one wrong word of five, since a recognizer mishears a word of a short text, too."""


class ClipRecord(JsonPart):
    """A judged clip: a line of `clips.jsonl`."""

    key: str
    """Digest of all that determines the clip and its measures."""
    text: str
    speaker: str
    language: str | None
    """The language in which it was spoken; None: the model takes none."""
    audio: str
    """Path of the file, relative to the folder."""
    sha256: str
    """Digest of the file."""
    seed: int
    codes: list[list[int]]
    ended: bool
    transcript: str | None
    errors: dict[str, int]
    similarity: float
    seconds: dict[str, float]
    """Durations by the names of `AudioMeasures`."""
    ending: dict[str, float]
    expected_seconds: float
    repetition: float

    @property
    def measures(self) -> SpeechMeasures:
        """The measures of the judge."""
        return SpeechMeasures(
            transcript=self.transcript,
            errors=ErrorCounts(**self.errors),
            similarity=self.similarity,
            sound=AudioMeasures(**self.seconds),
            ending=SpeechEnding(**self.ending),
            ended=self.ended,
            expected_seconds=self.expected_seconds,
            repetition=self.repetition,
        )


def store_measures(measures: SpeechMeasures) -> dict[str, Any]:
    """The fields of a `ClipRecord` that the judge measured."""
    return {
        "ended": measures.ended,
        "transcript": measures.transcript,
        "errors": asdict(measures.errors),
        "similarity": measures.similarity,
        "seconds": asdict(measures.sound),
        "ending": asdict(measures.ending),
        "expected_seconds": measures.expected_seconds,
        "repetition": measures.repetition,
    }


def choose_pair(clips: Sequence[ClipRecord], weights: RewardWeights, margin: float, max_wer: float) -> dict[str, JsonValue] | str:
    """The row of a pair for voice_dpo, or the reason why these clips of one text give none. The chosen clip ended well and has at most
    `max_wer`: the best of bad clips is nothing to learn. Of equal rewards, the earlier clip is taken."""
    judged = [clip for clip in clips if clip.transcript is not None]
    if len(judged) < 2:
        return "the recognizer failed"
    if all(clip.codes == judged[0].codes for clip in judged):
        return "all clips are the same"
    ended = [clip for clip in judged if clip.measures.has_good_ending]
    if not ended:
        return "no clip ends well"
    good = [clip for clip in ended if clip.measures.wer <= max_wer]
    if not good:
        return f"no clip that ends well has a WER of at most {max_wer:g}"
    rewards = {clip.key: compute_reward(clip.measures, weights) for clip in judged}
    best, worst = max(good, key=lambda clip: rewards[clip.key]), min(judged, key=lambda clip: rewards[clip.key])
    if rewards[best.key] - rewards[worst.key] < margin:
        return "the margin is too small"
    return make_row(best, worst, rewards)


def make_row(chosen: ClipRecord, rejected: ClipRecord, rewards: Mapping[str, float]) -> dict[str, JsonValue]:
    """The row of a pair. `rewards`: by the clips' keys."""
    row: dict[str, JsonValue] = {"text": chosen.text, "speaker": chosen.speaker, "language": chosen.language}
    for side, clip in (("chosen", chosen), ("rejected", rejected)):
        row |= {f"{side}_codes": clip.codes, f"{side}_ended": clip.ended, f"{side}_audio": clip.audio}  # type: ignore[dict-item]  # lists
        row[f"{side}_measures"] = describe_measures(clip, rewards)
    return {**row, "margin": rewards[chosen.key] - rewards[rejected.key]}


def describe_measures(clip: ClipRecord, rewards: Mapping[str, float]) -> dict[str, JsonValue]:
    """The measures of a side in a pair's row."""
    found = clip.measures
    return {
        "reward": rewards[clip.key],
        "wer": found.wer,
        "similarity": found.similarity,
        "pace": found.pace if found.sound.voiced_seconds else None,
        "good_ending": found.has_good_ending,
        "silence": found.silence,
        "clipping": found.clipping,
        "repetition": found.repetition,
        "transcript": found.transcript,
        "seconds": found.sound.seconds,
    }
