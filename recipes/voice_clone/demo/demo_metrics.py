"""Results of the demo: word error rates of the data preparation and of the generated speech, and similarity to the new and the known
voices.

Speaker similarity is the cosine of spectral statistics, for which recordings of a voice stay similar to it after the codec. The base's own
speaker encoder, random except for its last layer, mostly measures the codec: with it, the similarity of the new voice's recordings to the
voice falls from 0.99 to 0.49 when they go through the codec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from overtone.data_prep.transcription import demo_whisper
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.recipes.speech.evaluation import intelligibility, speaker_similarity
from overtone.recipes.speech.evaluation.intelligibility import Recognizer
from overtone.recipes.speech.evaluation.scoring import read_clip

from . import comparison_clips
from .comparison_clips import AFTER, BEFORE, ComparisonClip

JUDGE = intelligibility.describe_recognizer(demo_whisper.NAME)
"""Whose transcripts the WERs are, besides `Figures.released_wer`. A released Whisper has higher ones (workshop/lab_book/demos.md)."""
WER_CEILING, WER_OF_OTHERS = 0.5, 0.8
"""A run succeeds if the WER of the held-out sentences is at most the first, and the WER against other texts at least the second."""
NEW_VOICE_CLIPS = 12
"""Recordings of the new voice to compare with. The statistics are standardized over all recordings, so more clips of one voice move the
origin towards it: with 12, its own recordings have a similarity of 0.80 to it, with 40 of 0.57."""
LEAST_GAIN = 0.3
"""Least increase of the cosine to the new voice by training, for a run that succeeds."""

DIGITS = 6
"""Decimal places of a stored WER. The table rounds it again, to a tenth of a percent; with 4 places, 1.445 % became 1.5."""


@dataclass(frozen=True)
class Figures:
    """Results of one system over all sentences. Systems: the recordings, their codec reconstructions, the base, the trained model."""

    wer: float
    """Word error rate, a fraction."""
    wer_of_others: float
    """WER against the text of another sentence of the set: the value for speech that ignores its text."""
    new_voice: float
    """Mean cosine to the new voice's other recordings."""
    nearest: float
    """Mean cosine to the most similar of the base's six voices."""
    nearest_name: str
    released_wer: float | None = None
    """WER by a released recognizer, which was not trained on these voices; None without one."""


@dataclass(frozen=True)
class Outcome:
    """All results of the demo."""

    systems: Mapping[str, Figures]
    preparation_wer: float
    """WER of the transcripts of the kept clips."""
    preparation: Mapping[str, Any]
    """From the summary.json of data_prep."""
    loss: tuple[float, float]
    """Loss of the first and of the last step."""
    released: str = ""
    """Name of the released recognizer; empty without one."""

    def to_json(self) -> dict[str, Any]:
        """The content of summary.json."""
        return {
            "judge": JUDGE,
            "released_judge": self.released or None,
            "preparation": {**self.preparation, "wer": self.preparation_wer},
            "loss": {"first": self.loss[0], "last": self.loss[1]},
            "systems": {name: asdict(figures) for name, figures in self.systems.items()},
        }

    def format_table(self) -> str:
        """The results as text for the terminal."""
        width = max(12, len(self.released) + 2)
        released = f"{self.released:>{width}}" if self.released else ""
        head = f"{'':<18}{'WER':>12}{released}{'WER of others':>15}{'new voice':>12}{'nearest known voice':>26}"
        rows = [
            f"{name:<18}{one.wer:>12.1%}{'' if one.released_wer is None else f'{one.released_wer:>{width}.1%}'}"
            f"{one.wer_of_others:>15.1%}{one.new_voice:>12.3f}{f'{one.nearest:.3f} ({one.nearest_name})':>26}"
            for name, one in self.systems.items()
        ]
        judges = [
            f"WERs are by {JUDGE}: {self.preparation_wer:.1%} on the noisy recordings.",
            f"The column {self.released} has the WER by that released recognizer, which knows neither these voices nor the codec."
            if self.released
            else "No released recognizer was at hand. Others understand less of this speech: add --asr tiny.en, or the path of its file.",
        ]
        return "\n".join([*judges, "Similarities are cosines of spectral statistics.", head, *rows])

    def list_failures(self) -> list[str]:
        """Promises of the README that this run did not keep."""
        before, after = self.systems[BEFORE], self.systems[AFTER]
        failures = {
            f"the WER of the trained voice is {after.wer:.0%}; at most {WER_CEILING:.0%} is expected": (after.wer > WER_CEILING),
            f"its WER against other texts is only {after.wer_of_others:.0%}, so it does not speak its own text": (
                after.wer_of_others < WER_OF_OTHERS
            ),
            f"its similarity to the new voice is {after.new_voice:.3f}, {before.new_voice:.3f} before training: no clear gain": (
                after.new_voice < before.new_voice + LEAST_GAIN
            ),
            f"its speech is more similar to {after.nearest_name} ({after.nearest:.3f}) than to the new voice ({after.new_voice:.3f})": (
                after.new_voice <= after.nearest
            ),
        }
        return [message for message, failed in failures.items() if failed]


def measure_demo(home: Path, new_voice: Path, speaker: str, clips: Mapping[str, Sequence[ComparisonClip]], asr: str = "") -> Outcome:
    """Compute all results from the files of all stages in `home`, the recordings in `new_voice`, and the clips of each system. `asr`: name
    or file of the released Whisper that transcribed the clips; empty if the demo's own did."""
    steps = [event for event in read_log(home / "run" / LOG) if event["event"] == "step"]
    prepared = json.loads((home / "data" / "summary.json").read_text(encoding="utf-8"))
    rows = [row for name in ("train", "val") for row in comparison_clips.read_rows(home / "data" / f"{name}.jsonl")]
    script = json.loads((new_voice / "script.json").read_text(encoding="utf-8"))
    return Outcome(
        systems=measure_systems(clips, new_voice, speaker, intelligibility.load_whisper(demo_whisper.NAME) if asr else None),
        preparation_wer=compute_preparation_wer(rows, script),
        preparation={name: prepared[name] for name in ("clips", "rejected", "rejected_by_reason")},
        loss=(steps[0]["loss"], steps[-1]["loss"]),
        released=intelligibility.describe_recognizer(asr) if asr else "",
    )


def compute_preparation_wer(rows: Iterable[Mapping[str, Any]], script: Sequence[Mapping[str, Any]]) -> float:
    """WER of the texts of the kept clips. The reference text of a clip is the sentences of the script whose middle is in it; where nobody
    speaks, every word is an error."""
    wrong = words = 0
    for row in rows:
        spoken = [
            line["text"]
            for line in script
            if Path(row["source"]).name == line["recording"] and row["start"] <= (line["start"] + line["end"]) / 2 < row["end"]
        ]
        errors = intelligibility.count_errors(" ".join(spoken), row["text"], "english")
        wrong += errors.wrong_words if errors else len(row["text"].split())
        words += errors.words if errors else 0
    return round(wrong / words, DIGITS)


def measure_systems(
    clips_of_systems: Mapping[str, Sequence[ComparisonClip]], new_voice: Path, speaker: str, own: Recognizer | None
) -> dict[str, Figures]:
    """System → its results. `own`: the demo's Whisper, which transcribes the clips again if their transcripts are by a released one; None
    if they are by the demo's."""
    encoder = speaker_similarity.mfcc_encoder()
    voices = embed_voices(encoder, new_voice, speaker)
    figures = {}
    for title, clips in clips_of_systems.items():
        by_own = clips if own is None else transcribe_again(clips, own)
        vectors = [speaker_similarity.embed(encoder, read_clip(clip.path)) for clip in clips]
        similarity = {voice: mean_similarity(vectors, clips, voices, voice) for voice in voices.clips}
        nearest = max(similarity.keys() - {speaker}, key=lambda voice: similarity[voice])
        figures[title] = Figures(
            compute_word_error_rate(by_own, 0),
            compute_word_error_rate(by_own, len(clips) // 2),
            similarity[speaker],
            similarity[nearest],
            nearest,
            None if own is None else compute_word_error_rate(clips, 0),
        )
    return figures


def transcribe_again(clips: Sequence[ComparisonClip], recognizer: Recognizer) -> list[ComparisonClip]:
    """The clips with the transcripts of another recognizer."""
    return [replace(clip, heard=intelligibility.transcribe(recognizer, read_clip(clip.path), "english").text) for clip in clips]


def compute_word_error_rate(clips: Sequence[ComparisonClip], shift: int) -> float:
    """WER over all clips, each compared with the text `shift` places later, cyclically."""
    pairs = [(clips[(at + shift) % len(clips)].text, clip.heard) for at, clip in enumerate(clips)]
    return round(intelligibility.transcripts_wer(pairs, "english"), DIGITS)


def embed_voices(encoder: speaker_similarity.SimilarityEncoder, new_voice: Path, speaker: str) -> speaker_similarity.SpeakerClipVectors:
    """Vectors of recordings of the base's six voices and of the new voice (see `NEW_VOICE_CLIPS`)."""
    clips = {folder.name: sorted(folder.iterdir()) for folder in sorted((new_voice / "known").iterdir())}
    clips[speaker] = sorted((new_voice / "held_out").iterdir())[:NEW_VOICE_CLIPS]
    vectors = {name: {path: encoder.vector(read_clip(path)) for path in paths} for name, paths in clips.items()}
    return speaker_similarity.group_vectors(encoder, vectors)


def mean_similarity(
    vectors: Sequence[speaker_similarity.Vector | None],
    clips: Sequence[ComparisonClip],
    voices: speaker_similarity.SpeakerClipVectors,
    voice: str,
) -> float:
    """Mean cosine of the clips' vectors to a voice's recordings of other texts; 0 for silence, which has no vector."""
    cosines = [
        0.0 if vector is None else voices.similarity(vector, voice, frozenset({clip.real}))
        for vector, clip in zip(vectors, clips, strict=True)
    ]
    return round(float(np.mean([one for one in cosines if one is not None])), 4)
