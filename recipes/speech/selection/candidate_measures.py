"""The measures of a candidate's clips: measured, saved as `measures.json`, restored in a later run, and tabulated for the ranking."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.json_schema import JsonPart, validate_json
from overtone.finetune.storage.strict_json import read_object
from overtone.recipes.speech.evaluation import audio_measures, intelligibility, scoring
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.confidence_intervals import Array
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip
from overtone.recipes.speech.evaluation.scoring import ScoringModels
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder
from overtone.recipes.speech.evaluation.systems import Take
from overtone.recipes.speech.selection.candidates import VoiceCandidate
from overtone.recipes.speech.selection.speech_endings import SpeechEnding, measure_ending

MEASURES_FILE = "measures.json"
"""A file in the folder of a candidate, beside its clips; it is written last."""


class ClipMeasures(JsonPart):
    """Measures of one clip."""

    key: str
    ended: bool
    seconds: float
    silent_seconds: float
    clipped_seconds: float
    transcript: str | None
    """None: the recogniser failed."""
    transcribed_again: bool
    """The value of `ScoredClip.transcribed_again`."""
    similarity: float | None
    """0 for a clip that is silent or too short for a voice; None if the data has no other clip to compare it with."""
    final_silence: float
    final_level: float


class CandidateRecord(JsonPart):
    """`measures.json` of a candidate."""

    fingerprint: str
    """Digest of everything that affects the measures."""
    clips: list[ClipMeasures]


@dataclass(frozen=True)
class ComparedClip:
    """One clip with everything that a selection measures."""

    scored: ScoredClip
    ending: SpeechEnding

    @property
    def has_good_ending(self) -> bool:
        return self.ending.is_good(self.scored.ended)


@dataclass(frozen=True)
class ClipRuler:
    """Measures the clips of candidates, and saves the measures beside them."""

    models: ScoringModels
    """The models that measure; they include one speaker encoder."""
    encoder: SimilarityEncoder
    settings: Mapping[str, JsonValue]
    """Settings that affect the measures, besides weights and texts."""

    def measure(self, candidate: VoiceCandidate, takes: Sequence[Take], items: Sequence[Item], folder: Path) -> list[ComparedClip]:
        """Measure all clips of a candidate, and write `measures.json` last."""
        rows = [self._measure_clip(take) for take in sorted(takes, key=lambda take: take.item.key)]
        record = CandidateRecord(fingerprint=self._fingerprint(candidate, items), clips=rows)
        files.write_json(folder / candidate.slug / MEASURES_FILE, record.model_dump())
        return self._join(rows, items, folder / candidate.slug)

    def restore(self, candidate: VoiceCandidate, items: Sequence[Item], folder: Path) -> list[ComparedClip] | None:
        """Return what an earlier selection measured, if it is complete and of the same weights, texts and settings; otherwise None."""
        own = folder / candidate.slug
        try:
            record = CandidateRecord.model_validate(validate_json(CandidateRecord, read_object(own / MEASURES_FILE)))
        except (OSError, UserError, ValueError):
            return None
        complete = [clip.key for clip in record.clips] == sorted(item.key for item in items)
        if not complete or record.fingerprint != self._fingerprint(candidate, items):
            return None
        return self._join(record.clips, items, own) if all(_clip_path(own, clip.key).is_file() for clip in record.clips) else None

    def _measure_clip(self, take: Take) -> ClipMeasures:
        clip = judge(take, self.models)
        scored, sound = clip.scored, clip.scored.sound
        similarity = scored.similarities[self.encoder.name]
        if similarity is None and (sound.seconds < self.encoder.shortest_seconds or not sound.voiced_seconds):
            similarity = 0.0  # too little sound for a voice must not be an advantage
        return ClipMeasures(
            key=scored.item.key,
            ended=scored.ended,
            seconds=sound.seconds,
            silent_seconds=sound.silent_seconds,
            clipped_seconds=sound.clipped_seconds,
            transcript=scored.transcript,
            transcribed_again=scored.transcribed_again,
            similarity=similarity,
            final_silence=clip.ending.silence,
            final_level=clip.ending.level,
        )

    def _join(self, rows: Sequence[ClipMeasures], items: Sequence[Item], folder: Path) -> list[ComparedClip]:
        by_key = {item.key: item for item in items}
        return [self._join_one(row, by_key[row.key], _clip_path(folder, row.key)) for row in rows]

    def _join_one(self, found: ClipMeasures, item: Item, path: Path) -> ComparedClip:
        """The errors are counted from the transcript, as `scoring.score` counts them."""
        assert self.models.asr is not None, "a selection always has a recognizer"
        said, language = found.transcript, intelligibility.choose_language(self.models.asr, item.language)
        scored = ScoredClip(
            item,
            path,
            AudioMeasures(found.seconds, found.silent_seconds, found.clipped_seconds),
            found.ended,
            transcript=said,
            errors=None if said is None else intelligibility.count_errors(item.text, said, language),
            words=[] if said is None else intelligibility.align_words(item.text, said, language),
            similarities={self.encoder.name: found.similarity},
            transcribed_again=found.transcribed_again,
        )
        return ComparedClip(scored, SpeechEnding(found.final_silence, found.final_level))

    def _fingerprint(self, candidate: VoiceCandidate, items: Sequence[Item]) -> str:
        """SHA-256 of everything that affects the measures."""
        texts = [(item.key, item.text, item.speaker, item.language) for item in items]
        weights = files.digest(candidate.checkpoint / "manifest.json")
        return hashlib.sha256(json.dumps([weights, candidate.strength, texts, dict(self.settings)]).encode()).hexdigest()


def _clip_path(folder: Path, key: str) -> Path:
    """Return where `systems.speak` writes the clip of an item."""
    return folder / f"{key}.flac"


def judge(take: Take, models: ScoringModels) -> ComparedClip:
    """Return all measures of a clip."""
    return ComparedClip(scoring.score(take, models, None), measure_ending(scoring.read_clip(take.path)))


def expect_seconds(items: Sequence[Item], recordings: Sequence[Item]) -> dict[str, float]:
    """Key of an item → seconds of sound that the speaker would take for it: those of the recording of the same text, or else the number of
    characters divided by the speaker's rate in all `recordings`. Items of speakers without recordings are missing."""
    voiced, rates = measure_recordings(recordings)
    found = {item.key: voiced.get(item.key) or (len(item.text) / rates[item.speaker] if item.speaker in rates else 0.0) for item in items}
    return {key: seconds for key, seconds in found.items() if seconds > 0}


def measure_recordings(recordings: Sequence[Item]) -> tuple[dict[str, float], dict[str, float]]:
    """Key of a recording → its seconds of sound, and speaker → characters per second of sound in all recordings. Speakers without sound are
    missing."""
    voiced = {item.key: _voiced_seconds(item) for item in recordings if item.recording is not None}
    rates = {}
    for speaker in {item.speaker for item in recordings}:
        own = [item for item in recordings if item.speaker == speaker and voiced.get(item.key)]
        if own:
            rates[speaker] = sum(len(item.text) for item in own) / sum(voiced[item.key] for item in own)
    return voiced, rates


def _voiced_seconds(item: Item) -> float:
    assert item.recording is not None
    return audio_measures.measure(scoring.read_clip(item.recording)).voiced_seconds


def tabulate(clips: Sequence[ComparedClip], expected: Mapping[str, float]) -> Array:
    """Numerators and denominators [texts, measures, 2] of a candidate's clips, by key, for `candidate_ranking.decide`."""
    rows = []
    for clip in sorted(clips, key=lambda one: one.scored.item.key):
        scored = clip.scored
        (similarity,) = scored.similarities.values()
        voiced, seconds = scored.sound.voiced_seconds, expected.get(scored.item.key)
        rows.append(
            [
                (0.0, 0.0) if scored.errors is None else (scored.errors.wrong_words, scored.errors.words),
                (0.0, 0.0) if similarity is None else (similarity, 1.0),
                (seconds, voiced) if scored.ended and voiced > 0 and seconds is not None else (0.0, 0.0),
                (float(not clip.has_good_ending), 1.0),
            ]
        )
    return np.array(rows, np.float64)
