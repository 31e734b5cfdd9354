"""What the demo reached: how well the new voice was understood, by Whisper and in speech, and whom its speech resembles.

Resemblance is told by the colour of the sound (`eval_likeness.spectral`), by which recordings of a voice are as like it as the codec lets
them be. The base's own speaker encoder, random but for its last layer, hears the codec first: to it, recordings of the new voice that went
through the codec are half as like it (0.49) as they were (0.99).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.events import read_log

from . import demo_clips, eval_hearing, eval_likeness
from .demo_clips import AFTER, BEFORE, Said
from .eval_listening import samples_of

WER_CEILING, WER_OF_OTHERS = 0.5, 0.8
"""Unseen sentences are understood: at most so many words are wrong; and of each other's texts, at least so many."""
CLEARLY = 0.3
"""By so much at least must training have raised the cosine to the new voice."""


@dataclass(frozen=True)
class Figures:
    """Of the real recordings, of these through the codec, of the base before training, or of the trained voice; over all sentences."""

    wer: float
    """Share of wrong words."""
    wer_of_others: float
    """Held against another sentence of the set: what would be heard if it said anything at all."""
    new_voice: float
    """Mean cosine to the new voice's other recordings."""
    nearest: float
    """The same to that one of the base's six voices which it resembles most."""
    nearest_name: str


@dataclass(frozen=True)
class Outcome:
    """All of it."""

    systems: Mapping[str, Figures]
    preparation_wer: float
    """Of the texts that Whisper wrote, of the clips that were kept."""
    preparation: Mapping[str, Any]
    """What data_prep says of itself."""
    loss: tuple[float, float]
    """Of the first step and the last."""

    def record(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "preparation": {**self.preparation, "wer": self.preparation_wer},
            "loss": {"first": self.loss[0], "last": self.loss[1]},
            "systems": {name: asdict(figures) for name, figures in self.systems.items()},
        }

    def table(self) -> str:
        """For the console."""
        head = f"{'':<18}{'wrong words':>12}{'of others':>12}{'like the voice':>16}{'like a known one':>22}"
        rows = [
            f"{name:<18}{one.wer:>12.1%}{one.wer_of_others:>12.1%}{one.new_voice:>16.3f}{f'{one.nearest:.3f} ({one.nearest_name})':>22}"
            for name, one in self.systems.items()
        ]
        return "\n".join([f"Whisper wrote {self.preparation_wer:.1%} of the words of the recordings wrongly.", head, *rows])

    def broken(self) -> list[str]:
        """What the README promises and this run did not keep."""
        before, after = self.systems[BEFORE], self.systems[AFTER]
        complaints = {
            f"of what the voice says, {after.wer:.0%} of the words are wrong; at most {WER_CEILING:.0%} was to be": (
                after.wer > WER_CEILING
            ),
            f"held against other texts only {after.wer_of_others:.0%} are wrong, so it does not say its own": (
                after.wer_of_others < WER_OF_OTHERS
            ),
            f"the voice is {after.new_voice:.3f} like the new one, {before.new_voice:.3f} before training: no clear gain": (
                after.new_voice < before.new_voice + CLEARLY
            ),
            f"the speech is more like {after.nearest_name} ({after.nearest:.3f}) than like the new voice ({after.new_voice:.3f})": (
                after.new_voice <= after.nearest
            ),
        }
        return [complaint for complaint, true in complaints.items() if true]


def measure(home: Path, new_voice: Path, speaker: str, said: Mapping[str, Sequence[Said]]) -> Outcome:
    """From what the stages left in `home`, the material in `new_voice`, and the clips."""
    steps = [event for event in read_log(home / "run" / "log.jsonl") if event["event"] == "step"]
    told = json.loads((home / "data" / "summary.json").read_text(encoding="utf-8"))
    rows = [row for name in ("train", "val") for row in demo_clips.rows_of(home / "data" / f"{name}.jsonl")]
    script = json.loads((new_voice / "script.json").read_text(encoding="utf-8"))
    return Outcome(
        systems=systems(said, new_voice, speaker),
        preparation_wer=preparation_wer(rows, script),
        preparation={name: told[name] for name in ("clips", "rejected", "rejected_by_reason")},
        loss=(steps[0]["loss"], steps[-1]["loss"]),
    )


def preparation_wer(rows: Iterable[Mapping[str, Any]], script: Sequence[Mapping[str, Any]]) -> float:
    """Wrong words over words of the clips that were kept: the script's sentences whose middle lies in a clip are what is said in it. Where
    nobody speaks, every word that was written is wrong."""
    wrong = words = 0
    for row in rows:
        said = [
            line["text"]
            for line in script
            if Path(row["source"]).name == line["recording"] and row["start"] <= (line["start"] + line["end"]) / 2 < row["end"]
        ]
        errors = eval_hearing.compare(" ".join(said), row["text"], "english")
        wrong += errors.wrong_words if errors else len(row["text"].split())
        words += errors.words if errors else 0
    return round(wrong / words, 4)


def systems(said: Mapping[str, Sequence[Said]], new_voice: Path, speaker: str) -> dict[str, Figures]:
    """Of whoever said the sentences."""
    encoder = eval_likeness.spectral()
    voices = known_voices(encoder, new_voice, speaker)
    found = {}
    for title, clips in said.items():
        vectors = [eval_likeness.embed(encoder, samples_of(clip.path)) for clip in clips]
        likeness = {voice: resemblance(vectors, clips, voices, voice) for voice in voices.clips}
        nearest = max(likeness.keys() - {speaker}, key=lambda voice: likeness[voice])
        found[title] = Figures(
            word_error_rate(clips, 0), word_error_rate(clips, len(clips) // 2), likeness[speaker], likeness[nearest], nearest
        )
    return found


def word_error_rate(clips: Sequence[Said], turned: int) -> float:
    """Over all clips, each held against the text that stands `turned` places on."""
    heard = [(clips[(at + turned) % len(clips)].text, clip.heard) for at, clip in enumerate(clips)]
    return round(eval_hearing.share_of_wrong_words(heard, "english"), 4)


def known_voices(encoder: eval_likeness.Encoder, new_voice: Path, speaker: str) -> eval_likeness.Voices:
    """Real clips of the base's six voices and of the new one, as the encoder hears them."""
    clips = {folder.name: sorted(folder.iterdir()) for folder in sorted((new_voice / "known").iterdir())}
    clips[speaker] = sorted((new_voice / "held_out").iterdir())
    vectors = {name: {path: encoder.vector(samples_of(path)) for path in paths} for name, paths in clips.items()}
    return eval_likeness.voices(encoder, vectors)


def resemblance(vectors: Sequence[eval_likeness.Vector | None], clips: Sequence[Said], voices: eval_likeness.Voices, voice: str) -> float:
    """Mean cosine of the clips' vectors to a voice's recordings of other texts. Silence, which has none, is like nobody."""
    cosines = [
        0.0 if vector is None else voices.likeness(vector, voice, frozenset({clip.real}))
        for vector, clip in zip(vectors, clips, strict=True)
    ]
    return round(float(np.mean([one for one in cosines if one is not None])), 4)
