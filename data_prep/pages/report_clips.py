"""Chooses the clips that the HTML reports embed, and encodes their audio and spectrograms as data URIs."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.audio.waveform import AudioError, read_audio
from overtone.data_prep.pages.quality_rule_effects import Weakness
from overtone.data_prep.pages.spectrogram_images import RATE, draw_spectrogram
from overtone.data_prep.pages.voice_dataset_loader import ReportClip
from overtone.finetune.storage import input_files
from overtone.finetune.storage.referenced_files import find_file

SHOWN = 20
"""Clips per group."""
AUDIO_BYTES = 16_000_000
"""Maximum bytes of all embedded audio, as base64, so that the page stays below 20 MB."""
TYPES = {".flac": "audio/flac", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".opus": "audio/ogg"}


@dataclass(frozen=True)
class ClipSelection:
    """Clips to embed; the three groups are disjoint."""

    best: list[ReportClip]
    worst: list[ReportClip]
    nearest: list[ReportClip]
    """Clips that failed a measured rule by the smallest margin."""


@dataclass(frozen=True)
class ClipMedia:
    """Embedded audio and spectrogram of one clip."""

    clip: ReportClip
    player: str
    """Data URI of the audio; empty: unreadable, or no room."""
    picture: str
    """Data URI of the spectrogram; empty: no samples."""
    missing: str
    """The reason why there is no player."""


def choose_clips(kept: Sequence[ReportClip], rejected: Sequence[ReportClip], weaknesses: Mapping[str, Weakness]) -> ClipSelection:
    """Choose by the weakest measure of each clip (`quality_rule_effects.find_weaknesses`), most extreme first."""
    ranked = sorted((clip for clip in kept if clip.id in weaknesses), key=lambda clip: (weaknesses[clip.id].margin, clip.id))
    candidates = [clip for clip in rejected if clip.audio and clip.id in weaknesses and weaknesses[clip.id].margin < 0]
    nearest = sorted(candidates, key=lambda clip: (len(clip.reasons), -weaknesses[clip.id].margin, clip.id))
    half = len(ranked) // 2
    worst, best = ranked[: min(SHOWN, half)], ranked[half:][-SHOWN:]
    return ClipSelection(best[::-1], worst, nearest[:SHOWN])


def render_clips(folder: Path, choice: ClipSelection) -> dict[str, ClipMedia]:
    """Return clip id → embedded media. The groups take turns until the size limit is reached."""
    turns = [clip for turn in itertools.zip_longest(choice.worst, choice.best, choice.nearest) for clip in turn if clip]
    room = AUDIO_BYTES
    shown: dict[str, ClipMedia] = {}
    for clip in turns:
        shown[clip.id] = one = _render_clip(folder, clip, room)
        room -= len(one.player)
    return shown


def _render_clip(folder: Path, clip: ReportClip, room: int) -> ClipMedia:
    path = find_file(folder, clip.audio)
    try:
        samples = read_audio(path, RATE).samples
    except (AudioError, OSError) as error:
        return ClipMedia(clip, "", "", f"cannot be read: {error}")
    picture = make_data_uri("image/png", draw_spectrogram(samples)) if len(samples) else ""
    player = make_data_uri(TYPES.get(path.suffix.lower(), "audio/flac"), input_files.read_bytes(path))
    if len(player) > room:
        return ClipMedia(clip, "", picture, "the size limit for embedded audio is reached")
    return ClipMedia(clip, player, picture, "")


def make_data_uri(kind: str, data: bytes) -> str:
    """Return `data` as a base64 data URI of media type `kind`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
