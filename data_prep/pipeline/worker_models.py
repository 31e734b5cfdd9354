"""Lazily loaded models of a worker (VAD, Whisper, speaker encoder, aligner), and lazily decoded audio of a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any

from data_prep.alignment.interface import Aligner, LoadedAligner
from data_prep.audio import sandboxed_decoder
from data_prep.audio.sandboxed_decoder import AudioDecoder
from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Track, convert_position
from data_prep.audio_codecs.interface import LoadedSpeakerEncoder, SpeakerEncoder
from data_prep.clips.dnsmos import LoadedSoundScorer, SoundScorer
from data_prep.parallel import process_pool
from data_prep.segmentation import recording_parts, vad
from data_prep.segmentation.vad import Region, SpeechDetector
from data_prep.transcription import whisper_engine
from data_prep.transcription.whisper_languages import WHISPER_OPTION


class Models:
    """Owns the models and the audio decoder of this process; each is loaded at most once, on first use. A context manager."""

    def __init__(
        self,
        whisper: str | None,
        device: str,
        folder: Path,
        encoder: SpeakerEncoder | None = None,
        scorer: SoundScorer | None = None,
        aligner: Aligner | None = None,
        whisper_option: str = WHISPER_OPTION,
    ) -> None:
        self.loads: Counter[str] = Counter()
        self._name, self._device, self._folder, self._option = whisper, device, folder, whisper_option
        self._encoder, self._scorer, self._aligner = encoder, scorer, aligner
        self._open = ExitStack()

    @cached_property
    def decoder(self) -> AudioDecoder:
        """Audio decoder; its temporary samples go to `folder`."""
        return self._open.enter_context(AudioDecoder(self._folder))

    @cached_property
    def vad(self) -> SpeechDetector:
        self.loads["vad"] += 1
        return vad.load_vad()

    @cached_property
    def whisper(self) -> Any:
        assert self._name, "no Whisper was requested"
        self.loads["whisper"] += 1
        return whisper_engine.load_whisper(self._name, self._device, self._option)

    @cached_property
    def encoder(self) -> LoadedSpeakerEncoder:
        assert self._encoder, "no speaker check was requested"
        self.loads["speaker_encoder"] += 1
        return self._encoder.load(self._device)

    @cached_property
    def scorer(self) -> LoadedSoundScorer:
        assert self._scorer, "no sound quality was requested"
        self.loads["sound_scorer"] += 1
        return self._scorer.load()

    @cached_property
    def aligner(self) -> LoadedAligner:
        assert self._aligner, "no alignment was requested"
        self.loads["aligner"] += 1
        return self._aligner.load(self._device)

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


@dataclass(frozen=True)
class Activity:
    """What a worker does with a recording, sent to the parent while one step of it takes long."""

    step: str
    seconds: float
    """Of the recording, done so far in this step."""


class LazyAudio:
    """Samples of one recording, decoded on first use: `master` at `MASTER_RATE`, `speech_audio` at `SPEECH_RATE` for VAD and Whisper.

    The samples of a recording that is divided into parts of `part_seconds` are files in `folder`, for the processes that work on the parts
    and for the next run; those of a short one disappear with this object.
    """

    def __init__(self, path: Path, models: Models, folder: Path | None = None, part_seconds: float = inf) -> None:
        self._path, self._models, self._folder, self._part_seconds = path, models, folder, part_seconds

    @cached_property
    def track(self) -> Track:
        return self._models.decoder.probe(self._path, report=partial(report_activity, "checking the file"))

    @property
    def is_divided(self) -> bool:
        """Whether the recording is divided into parts."""
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
    """Samples of one part of a recording that `LazyAudio` stored; positions are relative to the start of the part. Without a `track`, of
    one that it is still storing, where the part is complete."""

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


def report_activity(step: str, seconds: float) -> None:
    """Send an `Activity` to the parent."""
    process_pool.send_progress(Activity(step, seconds))


def format_time(seconds: float) -> str:
    """Seconds as `1:02:03`."""
    return str(timedelta(seconds=round(seconds)))
