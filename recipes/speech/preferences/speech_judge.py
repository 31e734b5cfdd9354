"""The judge of a spoken clip: its measures, and one number, the reward.

    judge = load_judge(recordings, {"english"}, encoder, "small")
    measures = judge.measure(samples, item, ended=True)
    reward = compute_reward(measures, RewardWeights())

The two scores say how well the clip speaks its text in its voice. The guards say what a model could do to please a recognizer and a speaker
encoder without speaking: each penalty is 0 for ordinary speech.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.transcription.word_errors import list_readings, normalize
from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation import audio_measures, intelligibility, scoring, speaker_similarity
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts, Recognizer
from overtone.recipes.speech.evaluation.scoring import ItemTranscript
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder, SpeakerClipVectors
from overtone.recipes.speech.selection.candidate_measures import measure_recordings
from overtone.recipes.speech.selection.speech_endings import SpeechEnding, measure_ending

from .reward_weights import RewardWeights

USUAL_PACE, WORST_PACE = 1.5, 3.0
"""Factors between the seconds of sound and the speaker's own: up to the first there is no penalty, from the second on the full one."""
USUAL_SILENCE = 0.4
"""Share of silence without a penalty."""
WORST_CLIPPING = 0.01
"""Share of clipped samples with the full penalty."""


@dataclass(frozen=True)
class SpeechMeasures:
    """All measures of one clip."""

    transcript: str | None
    """None: the recognizer failed."""
    errors: ErrorCounts
    """Counts every word of a failed transcript as wrong."""
    similarity: float
    """Cosine to the speaker's recordings; 0 for a clip that is silent or too short for a voice."""
    sound: AudioMeasures
    ending: SpeechEnding
    ended: bool
    """False: cut off at the time limit."""
    expected_seconds: float
    """Seconds of sound that the speaker would take for the text."""
    repetition: float
    """Share of transcribed words that repeat the words before them, beyond those of the text."""

    @property
    def wer(self) -> float:
        """Word error rate as a fraction; above 1 with many inserted words."""
        return self.errors.wrong_words / self.errors.words

    @property
    def pace(self) -> float:
        """Expected seconds / seconds of sound: above 1 is faster than the speaker; infinite without sound."""
        return self.expected_seconds / self.sound.voiced_seconds if self.sound.voiced_seconds > 0 else math.inf

    @property
    def silence(self) -> float:
        """Share of silence; 1 for a clip without samples."""
        return self.sound.silent_seconds / self.sound.seconds if self.sound.seconds else 1.0

    @property
    def clipping(self) -> float:
        """Share of clipped samples."""
        return self.sound.clipped_seconds / self.sound.seconds if self.sound.seconds else 0.0

    @property
    def has_good_ending(self) -> bool:
        return self.ending.is_good(self.ended)


@dataclass(frozen=True)
class SpeechJudge:
    """The loaded models that judge clips, and what they know of the speakers."""

    asr: Recognizer
    encoder: SimilarityEncoder
    voices: SpeakerClipVectors
    """Vectors of the speakers' recordings, by the encoder."""
    rates: Mapping[str, float]
    """Speaker → characters per second of sound in the recordings."""

    def measure(self, samples: Samples, item: Item, ended: bool) -> SpeechMeasures:
        """Measure `samples` [n] at 24 kHz, full scale 1.0, which should speak the item's text in its speaker's voice. `ended`: False if the
        speech was cut off at the time limit. Raises `UserError` for a speaker without recordings, and for a text without words."""
        return self.measure_takes([(samples, ended)], item)[0]

    def measure_takes(self, takes: Sequence[tuple[Samples, bool]], item: Item) -> list[SpeechMeasures]:
        """As `measure`, several clips of the same item, given as (samples, ended), at once, which is faster."""
        self.check(item)
        said = scoring.transcribe_takes(self.asr, [samples for samples, _ in takes], item)
        return [self._combine(samples, item, ended, transcript) for (samples, ended), transcript in zip(takes, said, strict=True)]

    def _combine(self, samples: Samples, item: Item, ended: bool, said: ItemTranscript) -> SpeechMeasures:
        language = intelligibility.choose_language(self.asr, item.language)
        errors = said.errors if said.text is not None else intelligibility.count_errors(item.text, "", language)
        assert errors is not None  # `check` refuses texts without words
        return SpeechMeasures(
            transcript=said.text,
            errors=errors,
            similarity=scoring.measure_similarity(self.encoder, self.voices, samples, item) or 0.0,
            sound=audio_measures.measure(samples),
            ending=measure_ending(samples),
            ended=ended,
            expected_seconds=len(item.text) / self.rates[item.speaker],
            repetition=measure_repetition(list_readings(item.text, language)[-1].split(), normalize(said.text or "", language).split()),
        )

    def check(self, item: Item) -> None:
        """Raises `UserError` for a speaker without recordings, and for a text without words."""
        own = self.voices.clips.get(item.speaker, {})
        if item.speaker not in self.rates or not own.keys() - scoring.excluded_clips(self.voices, item):
            known = ", ".join(sorted(self.rates)) or "nobody"
            raise UserError(
                f"speaker {item.speaker!r}: no recording with sound to compare the speech of {item.text!r:.60} with; the recordings are "
                f"those of {known}; add rows with audio of this speaker"
            )
        if not normalize(item.text, intelligibility.choose_language(self.asr, item.language)):
            raise UserError(f"text {item.text!r:.60} has no word to count errors of; correct or remove it")


def load_judge(recordings: Sequence[Item], languages: Iterable[str], encoder: SimilarityEncoder, asr: str) -> SpeechJudge:
    """Load the Whisper model `asr`, and embed and measure the recordings. `languages`: those of the texts that will be judged.

    Raises `UserError` for a recording that cannot be read, and for a language that the Whisper model does not support.
    """
    recognizer = intelligibility.load_whisper(asr)
    intelligibility.require_languages(recognizer, languages)
    voices = speaker_similarity.group_vectors(encoder, scoring.embed_real_clips(encoder, recordings))
    return SpeechJudge(recognizer, encoder, voices, measure_recordings(recordings)[1])


def compute_reward(measures: SpeechMeasures, weights: RewardWeights) -> float:
    """The reward of a clip: the weighted mean of the scores, in [0, 1], minus the weighted penalties."""
    scores = rate_scores(measures)
    total = sum(getattr(weights, name) for name in scores)
    reward = sum(getattr(weights, name) * value for name, value in scores.items()) / total
    for name, penalty in rate_penalties(measures).items():
        reward -= getattr(weights, name) * penalty
    return reward


def rate_scores(measures: SpeechMeasures) -> dict[str, float]:
    """The scores by their names in `RewardWeights`, each in [0, 1]; 1 is the text in the voice."""
    return {"intelligibility": 1 - min(measures.wer, 1.0), "similarity": min(max(measures.similarity, 0.0), 1.0)}


def rate_penalties(measures: SpeechMeasures) -> dict[str, float]:
    """The penalties by their names in `RewardWeights`, each in [0, 1]; 0 is ordinary speech."""
    distance = abs(math.log(measures.pace)) if 0 < measures.pace < math.inf else math.inf
    return {
        "pace": _rise(distance, math.log(USUAL_PACE), math.log(WORST_PACE)),
        "ending": float(not measures.has_good_ending),
        "silence": _rise(measures.silence, USUAL_SILENCE, 1.0),
        "clipping": _rise(measures.clipping, 0.0, WORST_CLIPPING),
        "repetition": measures.repetition,
    }


def measure_repetition(expected: Sequence[str], transcribed: Sequence[str]) -> float:
    """Share of transcribed words that belong to a repetition of the words directly before them, in [0, 1]; as many as the expected text
    has itself are not counted."""
    if not transcribed:
        return 0.0
    repeated, own = (_count_repeated(words) for words in (transcribed, expected))
    return max(repeated - own, 0) / len(transcribed)


def _count_repeated(words: Sequence[str]) -> int:
    """Number of words in passages of any length that equal the passage before them."""
    found = set[int]()
    for length in range(1, len(words) // 2 + 1):
        run = 0
        for at in range(length, len(words)):
            run = run + 1 if words[at] == words[at - length] else 0
            if run >= length:
                found.update(range(at - length + 1, at + 1))
    return len(found)


def _rise(value: float, start: float, full: float) -> float:
    """0 up to `start`, 1 from `full` on, linear between them."""
    return min(max((value - start) / (full - start), 0.0), 1.0)
