"""Clips to listen to and to look at inside the page: which ones, their sound, their spectrogram."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from data_prep.audio import AudioError, Samples, read
from data_prep.report_clips import Clip
from data_prep.report_rules import Weakness
from data_prep.rosa import import_librosa
from finetune import files

SHOWN = 20
"""Clips of each kind."""
AUDIO_BYTES = 16_000_000
"""Of all players together, as base64: the page stays below 20 MB."""
TYPES = {".flac": "audio/flac", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".opus": "audio/ogg"}
RATE = 24_000
FFT, HOP, COLUMNS, BANDS = 1024, 256, 480, 80
LEVELS, DYNAMIC_DB = 24, 70.0
"""Shades of a picture: more of them would only make it larger."""
INK = LinearSegmentedColormap.from_list("ink", ["#f3f1ea", "#b9cfc8", "#4f8f88", "#17474a", "#06191d"], LEVELS)


@dataclass(frozen=True)
class Choice:
    """Clips to show; the three have none in common."""

    best: list[Clip]
    worst: list[Clip]
    nearest: list[Clip]
    """Rejected for what was measured, and nearest to being kept."""


@dataclass(frozen=True)
class Shown:
    """One clip as the page shows it."""

    clip: Clip
    player: str
    """Data URI; empty: no room for it, or no file."""
    picture: str
    """Data URI; empty: no sound."""
    missing: str
    """Why there is no player."""


def choose(kept: Sequence[Clip], rejected: Sequence[Clip], weaknesses: Mapping[str, Weakness]) -> Choice:
    """By the weakest measure of each clip (`report_rules.weaknesses`); the worst come with the worst one first."""
    ranked = sorted((clip for clip in kept if clip.id in weaknesses), key=lambda clip: (weaknesses[clip.id].margin, clip.id))
    heard = [clip for clip in rejected if clip.audio and clip.id in weaknesses and weaknesses[clip.id].margin < 0]
    nearest = sorted(heard, key=lambda clip: (len(clip.reasons), -weaknesses[clip.id].margin, clip.id))
    half = len(ranked) // 2
    worst, best = ranked[: min(SHOWN, half)], ranked[half:][-SHOWN:]
    return Choice(best[::-1], worst, nearest[:SHOWN])


def show(folder: Path, choice: Choice) -> dict[str, Shown]:
    """Clip id → what to show. While there is room, the groups take turns."""
    turns = [clip for turn in itertools.zip_longest(choice.worst, choice.best, choice.nearest) for clip in turn if clip]
    room = AUDIO_BYTES
    shown: dict[str, Shown] = {}
    for clip in turns:
        shown[clip.id] = one = _show(folder, clip, room)
        room -= len(one.player)
    return shown


def spectrogram(samples: Samples) -> bytes:
    """PNG of the mel spectrogram of samples at 24 kHz: 80 bands up to 12 kHz, low ones below; at most about 480 columns."""
    from matplotlib.image import imsave

    librosa = import_librosa()
    hop = max(HOP, -(-len(samples) // COLUMNS))
    power = librosa.feature.melspectrogram(y=samples, sr=RATE, n_fft=FFT, hop_length=hop, n_mels=BANDS)
    levels = librosa.power_to_db(power, ref=np.max, top_db=DYNAMIC_DB) / DYNAMIC_DB + 1.0
    buffer = io.BytesIO()
    imsave(buffer, levels, cmap=INK, vmin=0.0, vmax=1.0, origin="lower", format="png")
    return buffer.getvalue()


def _show(folder: Path, clip: Clip, room: int) -> Shown:
    path = files.resolve_under(folder, clip.audio)
    try:
        samples = read(path, RATE).samples
    except (AudioError, OSError) as error:
        return Shown(clip, "", "", f"it cannot be read: {error}")
    picture = data_uri("image/png", spectrogram(samples)) if len(samples) else ""
    player = data_uri(TYPES.get(path.suffix.lower(), "audio/flac"), path.read_bytes())
    if len(player) > room:
        return Shown(clip, "", picture, "the page has no room for more sound")
    return Shown(clip, player, picture, "")


def data_uri(kind: str, data: bytes) -> str:
    """Bytes as an address that needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
