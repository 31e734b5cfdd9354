"""The demo's figures: word error rates of the preparation and of the generated speech, and whose voice the speech is similar to.

Speaker similarity is the cosine of spectral statistics, with which recordings of a voice stay similar to it through the codec. The base's
own speaker encoder, random but for its last layer, mostly measures the codec: with it, the similarity of the new voice's recordings to the
voice falls from 0.99 to 0.49 when they go through the codec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.monitoring.event_log import read_log
from recipes.speech.evaluation import intelligibility, speaker_similarity
from recipes.speech.evaluation.scoring import read_clip

from . import comparison_clips
from .comparison_clips import AFTER, BEFORE, Said

WER_CEILING, WER_OF_OTHERS = 0.5, 0.8
"""Highest WER of the held-out sentences, and lowest WER against each other's texts, in a run that succeeds."""
CLEARLY = 0.3
"""Least increase of the cosine to the new voice by training."""


@dataclass(frozen=True)
class Figures:
    """Over all sentences, of one system: the recordings, the recordings through the codec, the base, or the trained model."""

    wer: float
    """Word error rate, a fraction."""
    wer_of_others: float
    """WER against the text of another sentence of the set: what speech that ignores its text would have."""
    new_voice: float
    """Mean cosine to the new voice's other recordings."""
    nearest: float
    """Mean cosine to the most similar one of the base's six voices."""
    nearest_name: str


@dataclass(frozen=True)
class Outcome:
    """All figures of the demo."""

    systems: Mapping[str, Figures]
    preparation_wer: float
    """WER of Whisper's transcripts of the kept clips."""
    preparation: Mapping[str, Any]
    """From the summary.json of data_prep."""
    loss: tuple[float, float]
    """In the first step and in the last."""

    def record(self) -> dict[str, Any]:
        """The content of summary.json."""
        return {
            "preparation": {**self.preparation, "wer": self.preparation_wer},
            "loss": {"first": self.loss[0], "last": self.loss[1]},
            "systems": {name: asdict(figures) for name, figures in self.systems.items()},
        }

    def table(self) -> str:
        """For the terminal."""
        head = f"{'':<18}{'wrong words':>12}{'of others':>12}{'like the voice':>16}{'like a known one':>22}"
        rows = [
            f"{name:<18}{one.wer:>12.1%}{one.wer_of_others:>12.1%}{one.new_voice:>16.3f}{f'{one.nearest:.3f} ({one.nearest_name})':>22}"
            for name, one in self.systems.items()
        ]
        return "\n".join([f"Whisper wrote {self.preparation_wer:.1%} of the words of the recordings wrongly.", head, *rows])

    def broken(self) -> list[str]:
        """Promises of the README that this run does not keep."""
        before, after = self.systems[BEFORE], self.systems[AFTER]
        complaints = {
            f"the WER of the trained voice is {after.wer:.0%}; at most {WER_CEILING:.0%} is expected": (after.wer > WER_CEILING),
            f"its WER against other texts is only {after.wer_of_others:.0%}, so it does not say its own": (
                after.wer_of_others < WER_OF_OTHERS
            ),
            f"its similarity to the new voice is {after.new_voice:.3f}, {before.new_voice:.3f} before training: no clear gain": (
                after.new_voice < before.new_voice + CLEARLY
            ),
            f"its speech is more similar to {after.nearest_name} ({after.nearest:.3f}) than to the new voice ({after.new_voice:.3f})": (
                after.new_voice <= after.nearest
            ),
        }
        return [complaint for complaint, true in complaints.items() if true]


def measure(home: Path, new_voice: Path, speaker: str, said: Mapping[str, Sequence[Said]]) -> Outcome:
    """From the files of all stages in `home`, the recordings in `new_voice`, and the clips of each system."""
    steps = [event for event in read_log(home / "run" / "log.jsonl") if event["event"] == "step"]
    prepared = json.loads((home / "data" / "summary.json").read_text(encoding="utf-8"))
    rows = [row for name in ("train", "val") for row in comparison_clips.rows_of(home / "data" / f"{name}.jsonl")]
    script = json.loads((new_voice / "script.json").read_text(encoding="utf-8"))
    return Outcome(
        systems=systems(said, new_voice, speaker),
        preparation_wer=preparation_wer(rows, script),
        preparation={name: prepared[name] for name in ("clips", "rejected", "rejected_by_reason")},
        loss=(steps[0]["loss"], steps[-1]["loss"]),
    )


def preparation_wer(rows: Iterable[Mapping[str, Any]], script: Sequence[Mapping[str, Any]]) -> float:
    """WER of the texts of the kept clips. A clip's reference is the sentences of the script whose middle is in it; where nobody speaks,
    every word of the text is an error."""
    wrong = words = 0
    for row in rows:
        said = [
            line["text"]
            for line in script
            if Path(row["source"]).name == line["recording"] and row["start"] <= (line["start"] + line["end"]) / 2 < row["end"]
        ]
        errors = intelligibility.count_errors(" ".join(said), row["text"], "english")
        wrong += errors.wrong_words if errors else len(row["text"].split())
        words += errors.words if errors else 0
    return round(wrong / words, 4)


def systems(said: Mapping[str, Sequence[Said]], new_voice: Path, speaker: str) -> dict[str, Figures]:
    """System → its figures."""
    encoder = speaker_similarity.mfcc_encoder()
    voices = known_voices(encoder, new_voice, speaker)
    found = {}
    for title, clips in said.items():
        vectors = [speaker_similarity.embed(encoder, read_clip(clip.path)) for clip in clips]
        likeness = {voice: resemblance(vectors, clips, voices, voice) for voice in voices.clips}
        nearest = max(likeness.keys() - {speaker}, key=lambda voice: likeness[voice])
        found[title] = Figures(
            word_error_rate(clips, 0), word_error_rate(clips, len(clips) // 2), likeness[speaker], likeness[nearest], nearest
        )
    return found


def word_error_rate(clips: Sequence[Said], turned: int) -> float:
    """Over all clips, each compared with the text `turned` places further on, cyclically."""
    heard = [(clips[(at + turned) % len(clips)].text, clip.heard) for at, clip in enumerate(clips)]
    return round(intelligibility.transcripts_wer(heard, "english"), 4)


def known_voices(encoder: speaker_similarity.SimilarityEncoder, new_voice: Path, speaker: str) -> speaker_similarity.SpeakerVectors:
    """The encoder's vectors of recordings of the base's six voices and of the new one."""
    clips = {folder.name: sorted(folder.iterdir()) for folder in sorted((new_voice / "known").iterdir())}
    clips[speaker] = sorted((new_voice / "held_out").iterdir())
    vectors = {name: {path: encoder.vector(read_clip(path)) for path in paths} for name, paths in clips.items()}
    return speaker_similarity.group_vectors(encoder, vectors)


def resemblance(
    vectors: Sequence[speaker_similarity.Vector | None], clips: Sequence[Said], voices: speaker_similarity.SpeakerVectors, voice: str
) -> float:
    """Mean cosine of the clips' vectors to a voice's recordings of other texts; 0 for silence, which has no vector."""
    cosines = [
        0.0 if vector is None else voices.similarity(vector, voice, frozenset({clip.real}))
        for vector, clip in zip(vectors, clips, strict=True)
    ]
    return round(float(np.mean([one for one in cosines if one is not None])), 4)
