"""Everything that listens to clips, and what each says of them: a recogniser, speaker encoders, and the measures of sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.audio import MASTER_RATE, AudioError, Samples, read
from finetune.errors import UserError

from . import eval_hearing as hearing
from . import eval_likeness as likeness
from . import eval_sound as sound
from .eval_figures import Scored
from .eval_likeness import Encoder, Voices
from .eval_rows import Item
from .eval_systems import RECORDINGS, Take


@dataclass(frozen=True)
class Panel:
    """The listeners of an evaluation."""

    asr: Any
    """A Whisper, or None."""
    encoders: Sequence[tuple[Encoder, Voices]]
    """Each with the real clips as it hears them."""


def encoders_of(base: Path | None, independent: str | None) -> list[Encoder]:
    """The model's own, if a base is at hand, and one that is not the model's. Raises `UserError` for what is none."""
    own = [likeness.own(base)] if base is not None else []
    return [*own, likeness.spectral() if independent is None else likeness.independent(independent)]


def panel(items: Sequence[Item], encoders: Sequence[Encoder], asr: str | None) -> Panel:
    """Load the recogniser, and let every encoder hear all recordings and reference clips.

    Raises `UserError` for a language that the recogniser does not know.
    """
    recogniser = None if asr is None else hearing.load(asr)
    if recogniser is not None:
        hearing.require_languages(recogniser, {item.language for item in items})
    return Panel(
        asr=recogniser,
        encoders=[(encoder, likeness.voices(encoder, real_clips(encoder, items))) for encoder in encoders],
    )


def refuse_unusable(items: Sequence[Item]) -> None:
    """Raise `UserError` for a recording or reference clip that cannot be decoded, before hours of speech depend on it."""
    for path in {path for item in items for path in (item.recording, item.reference) if path is not None}:
        samples_of(path)


def real_clips(encoder: Encoder, items: Sequence[Item]) -> dict[str, dict[Path, likeness.Vector]]:
    """Speaker → clip → vector, of recordings and reference clips; those too short to know a voice by are left out."""
    found: dict[str, dict[Path, likeness.Vector]] = {}
    for item in items:
        own = found.setdefault(item.speaker, {})
        for path in {item.recording, item.reference} - {None, *own}:
            assert path is not None
            vector = likeness.embed(encoder, samples_of(path))
            if vector is not None:
                own[path] = vector
    return found


def strangers(panel: Panel) -> dict[str, float]:
    """By encoder: the mean likeness of real clips to other speakers, where there are some."""
    return {encoder.name: float(np.mean(found)) for encoder, voices in panel.encoders if (found := voices.strangers())}


def score_all(takes: Mapping[str, Sequence[Take]], panel: Panel) -> dict[str, list[Scored]]:
    """All clips of all systems; the recordings, which the others are held to, first."""
    real = {take.item.key: score(take, panel, None) for take in takes.get(RECORDINGS, ())}
    scored = {RECORDINGS: list(real.values())}
    for name, own in takes.items():
        if name != RECORDINGS:
            seconds = {key: one.sound.seconds for key, one in real.items()}
            scored[name] = [score(take, panel, seconds.get(take.item.key)) for take in sorted(own, key=lambda take: take.item.key)]
    return scored


def score(take: Take, panel: Panel, real_seconds: float | None) -> Scored:
    """All that is measured of one clip."""
    samples = samples_of(take.path)
    heard, errors = None, None
    if panel.asr is not None:
        language = hearing.language_of(panel.asr, take.item.language)
        found = hearing.listen(panel.asr, samples, language)
        heard = None if found.problem else found.text
        errors = None if heard is None else hearing.compare(take.item.text, heard, language)
    likenesses = {encoder.name: _likeness(encoder, voices, samples, take.item) for encoder, voices in panel.encoders}
    return Scored(take.item, take.path, sound.measure(samples), take.ended, real_seconds, heard, errors, likenesses)


def notes(scored: Mapping[str, Sequence[Scored]], panel: Panel) -> list[str]:
    """What some clips say nothing about, counted."""
    told = []
    for name, clips in scored.items():
        deaf = sum(clip.heard is None for clip in clips) if panel.asr is not None else 0
        if deaf:
            told.append(f"{name}: the recogniser failed on {deaf} of {len(clips)} clips; they count neither for nor against it.")
        for encoder, _ in panel.encoders:
            mute = sum(clip.likeness[encoder.name] is None for clip in clips)
            if mute:
                told.append(
                    f"{name}: {mute} of {len(clips)} clips have no similarity by {encoder.name}: "
                    "they are silent or too short, or the data has no other clip of their speaker."
                )
    return told


def samples_of(path: Path) -> Samples:
    """A clip as mono at 24 kHz; an empty or silent one as what it is. Raises `UserError` for one that cannot be read."""
    try:
        return read(path, MASTER_RATE).samples
    except AudioError as error:
        if error.reason in ("silent", "empty"):
            return _plainly(path)
        raise UserError(f"{path} cannot be used ({error}); make the clip again, or remove its row") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); restore it, or remove its row") from error


def _plainly(path: Path) -> Samples:
    """What `read` refuses as training data is a finding here: a model may say nothing."""
    import soundfile

    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return np.zeros(round(len(samples) * MASTER_RATE / rate), np.float32)


def _likeness(encoder: Encoder, voices: Voices, samples: Samples, item: Item) -> float | None:
    vector = likeness.embed(encoder, samples)
    if vector is None:
        return None
    return voices.likeness(vector, item.speaker, apart(voices, item))


def apart(voices: Voices, item: Item) -> frozenset[Path]:
    """The clips that an item's own must not be held to: its recording, and what is cloned from, which a clone may echo.

    The latter stays if the data has no other clip of the speaker.
    """
    own = frozenset(voices.clips.get(item.speaker, {}))
    both = frozenset(path for path in (item.recording, item.reference) if path is not None)
    return both if own - both else both - {item.reference}
