"""Samples of a recording or of one part of it, decoded or memory-mapped on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import inf
from pathlib import Path

from overtone.data_prep.audio import sandboxed_decoder
from overtone.data_prep.audio.channel_selection import AUTO
from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Track, convert_position
from overtone.data_prep.pipeline.worker_activity import report_activity
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.segmentation import recording_parts
from overtone.data_prep.segmentation.vad import Region


class LazyAudio:
    """Samples of one recording, decoded on first use: `master` at `MASTER_RATE`, `speech_audio` at `SPEECH_RATE` for VAD and Whisper.

    The samples of a recording that is divided into parts of `part_seconds` are files in `folder`, for the processes that work on the parts
    and for the next run; those of a short one disappear with this object.
    """

    def __init__(self, path: Path, models: Models, folder: Path | None = None, part_seconds: float = inf, channels: str = AUTO) -> None:
        self._path, self._models, self._folder, self._part_seconds, self._channels = path, models, folder, part_seconds, channels

    @cached_property
    def track(self) -> Track:
        """Track of the chosen channels; assign the track that a stage has settled on before the samples are used."""
        return self._models.decoder.probe(self._path, report=partial(report_activity, "checking the file"), channels=self._channels)

    def load_speech_audio(self, track: Track) -> Audio:
        """Return the samples at `SPEECH_RATE` of another track of the recording, which disappear with the result."""
        return self._models.decoder.load(self._path, track)[1]

    @property
    def is_divided(self) -> bool:
        """True if the recording is divided into parts."""
        return self._folder is not None and recording_parts.is_divided(self.track.length, self._part_seconds)

    def store(self, track: Track, follow: Callable[[Path], None] = lambda _folder: None) -> None:
        """Decode a recording that is divided to its folder, unless it is there. `follow`: see `AudioDecoder.store`."""
        assert self._folder is not None

        def report(folder: Path, seconds: float) -> None:
            report_activity("decoding", seconds)
            follow(folder)

        self._models.decoder.store(self._path, track, self._folder, report)

    @cached_property
    def _decoded(self) -> tuple[Audio, Audio]:
        if self._folder is None or not self.is_divided:
            return self._models.decoder.load(self._path, self.track)
        self.store(self.track)
        return sandboxed_decoder.map_stored(self._folder, self.track)

    @property
    def master(self) -> Audio:
        return self._decoded[0]

    @property
    def speech_audio(self) -> Audio:
        return self._decoded[1]


class PartAudio:
    """Samples of one part of a recording that `LazyAudio` stored; positions are relative to the start of the part. Without a `track`, the
    recording is still being stored, and this part of it is complete."""

    def __init__(self, folder: Path, track: Track | None, part: Region) -> None:
        self._folder, self._track, self._part = folder, track, part

    @cached_property
    def _mapped(self) -> tuple[Audio, Audio]:
        if self._track is None:
            return sandboxed_decoder.map_growing(self._folder)
        return sandboxed_decoder.map_stored(self._folder, self._track)

    @property
    def master(self) -> Audio:
        return self._mapped[0].cut(*self._part)

    @property
    def speech_audio(self) -> Audio:
        start, stop = (convert_position(edge, MASTER_RATE, SPEECH_RATE) for edge in self._part)
        return self._mapped[1].cut(start, stop)
