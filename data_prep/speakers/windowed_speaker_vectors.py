"""Speaker vectors of short windows of a recording, which show where the voice changes; a vector of a whole clip does not."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import Base64Bytes, BaseModel, ConfigDict

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples, convert_position
from overtone.data_prep.audio_codecs.interface import LoadedSpeakerEncoder
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.errors import UserError

WINDOW_SECONDS = 1.6
"""Duration of the window of one vector: the length that GE2E encoders are trained on. Shorter speech between two pauses is one shorter
window."""
HOP_SECONDS = 0.75


class StoredVoiceWindows(BaseModel):
    """Result of the stage `voice_windows`: one vector per window."""

    model_config = ConfigDict(frozen=True)

    spans: list[tuple[int, int]]
    """Samples `start, stop` at `MASTER_RATE` of each window."""
    dimensions: int
    vectors: Base64Bytes
    """[windows, dimensions] little-endian fp16, of length 1."""


@dataclass(frozen=True)
class VoiceWindows:
    """Windows of one recording in the order of their starts; windows never reach over a pause."""

    spans: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """[n, 2] samples at `MASTER_RATE`."""
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 1), np.float32))
    """[n, H], of length 1."""

    def find_inside(self, start: int, stop: int) -> slice:
        """Return the windows whose middle is in `start:stop`."""
        middles = self.spans.sum(axis=1) // 2
        return slice(int(np.searchsorted(middles, start)), int(np.searchsorted(middles, stop)))

    def average(self, start: int, stop: int) -> NDArray[np.float32] | None:
        """Return the mean vector [H] of the windows whose middle is in `start:stop`, each weighted by its length; None without a window
        there."""
        inside = self.find_inside(start, stop)
        lengths = (self.spans[inside, 1] - self.spans[inside, 0]).astype(np.float32)
        return lengths @ self.vectors[inside] / lengths.sum() if len(lengths) else None

    def move(self, offset: int) -> VoiceWindows:
        """Return the windows of a part that starts at `offset`, as windows of the recording."""
        return VoiceWindows(self.spans + offset, self.vectors)


def join_windows(parts: Sequence[VoiceWindows]) -> VoiceWindows:
    """Return the windows of all parts of a recording, in order."""
    found = [part for part in parts if len(part.spans)]
    if not found:
        return VoiceWindows()
    return VoiceWindows(np.concatenate([part.spans for part in found]), np.concatenate([part.vectors for part in found]))


def embed_windows(encoder: LoadedSpeakerEncoder, master: Audio, speech_audio: Audio, regions: Sequence[Region]) -> StoredVoiceWindows:
    """Return the vectors of all windows in the speech of a recording. `speech_audio`: the same at 16 kHz.

    Raises `UserError` if a vector is NaN or Inf.
    """
    source = speech_audio if encoder.sample_rate == SPEECH_RATE else master
    spans = [span for region in regions if region.seconds >= encoder.shortest_seconds for span in list_windows(region)]
    vectors = np.zeros((len(spans), encoder.dimensions), np.float32)
    for index, (start, stop) in enumerate(spans):
        samples = source.samples[convert_position(start, MASTER_RATE, source.rate) : convert_position(stop, MASTER_RATE, source.rate)]
        vectors[index] = encoder.embed(_convert_rate(np.asarray(samples), source.rate, encoder.sample_rate))
    if not np.isfinite(vectors).all():
        raise UserError("the speaker encoder returned NaN or Inf: its weights are damaged; download the model of --speaker-check again")
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return StoredVoiceWindows(spans=spans, dimensions=encoder.dimensions, vectors=base64.b64encode(vectors.astype("<f2").tobytes()))


def describe_windows() -> dict[str, float]:
    """Return everything that the vectors depend on besides the speech and the encoder: part of the cache key."""
    return {"form": 1, "seconds": WINDOW_SECONDS, "hop": HOP_SECONDS}


def read_windows(stored: StoredVoiceWindows) -> VoiceWindows:
    """Return the windows of a stored result."""
    vectors = np.frombuffer(stored.vectors, "<f2").astype(np.float32).reshape(-1, stored.dimensions)
    return VoiceWindows(np.array(stored.spans, np.int64).reshape(-1, 2), vectors)


def list_windows(region: Region) -> list[tuple[int, int]]:
    """Return the windows of 1.6 s every 0.75 s, the last one at the end of the region; the whole region if it is shorter."""
    length, hop = round(WINDOW_SECONDS * MASTER_RATE), round(HOP_SECONDS * MASTER_RATE)
    if region.stop - region.start <= length:
        return [(region.start, region.stop)]
    starts = [*range(region.start, region.stop - length, hop), region.stop - length]
    return [(start, start + length) for start in starts]


def _convert_rate(samples: Samples, rate: int, wanted: int) -> Samples:
    if rate == wanted:
        return samples
    import soxr  # part of the extra `speech`; `overtone export-dataset` imports this module without it

    return np.asarray(soxr.resample(samples, rate, wanted, quality="VHQ"), np.float32)
