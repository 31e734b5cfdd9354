"""A selection with known figures, of clips that are real files."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.speech.evaluation.systems import RECORDINGS
from overtone.recipes.speech.selection import candidate_measures
from overtone.recipes.speech.selection.candidate_measures import ComparedClip
from overtone.recipes.speech.selection.candidate_ranking import DEFAULT_WEIGHTS, decide
from overtone.recipes.speech.selection.candidates import VoiceCandidate
from overtone.recipes.speech.selection.result_rendering import SelectionResult
from overtone.recipes.speech.selection.speech_endings import SpeechEnding
from tests.recipes.voice_clone import evaluated

FIGURES = {(1, 0.5): (0, 0.5), (2, 0.5): (2, 0.9), (2, 1.0): (3, 0.4), (3, 1.0): (2, 0.9)}
"""(step, strength) → wrong words of ten, similarity. Steps 2 and 3 tie."""


def judged(folder: Path, name: str, wrong: int, like: float) -> list[ComparedClip]:
    return [ComparedClip(clip, SpeechEnding(0.1, -40.0)) for clip in evaluated.clips(folder, name, 1.0, wrong, like)]


def selection(folder: Path) -> tuple[SelectionResult, dict[str, list[ComparedClip]]]:
    """The result, and the clips by candidate and of the recordings."""
    listed = [VoiceCandidate(folder / f"step-{step:08d}", strength) for step, strength in FIGURES]
    clips = {one.name: judged(folder, one.slug, *FIGURES[one.step, one.strength]) for one in listed}
    real = judged(folder, "real", 0, 0.95)
    expected = {clip.scored.item.key: 1.5 for clip in real}
    decision = decide({name: candidate_measures.tabulate(own, expected) for name, own in clips.items()}, DEFAULT_WEIGHTS, [*clips])
    recorded = candidate_measures.tabulate(real, expected).sum(axis=0)
    settings = {"data": "val.jsonl", "asr": "small"}
    result = SelectionResult({one.name: one for one in listed}, decision, recorded, ["A note."], settings)
    return result, {**clips, RECORDINGS: real}
