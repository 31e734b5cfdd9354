"""Lazily loaded models of a worker (voice activity detection, Whisper, speaker encoder), and lazily decoded audio of a recording."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from data_prep.audio.decoder_process import AudioDecoder
from data_prep.audio.waveform import Audio, Track
from data_prep.audio_codecs.interface import LoadedSpeakerEncoder, SpeakerEncoder
from data_prep.segmentation import vad
from data_prep.transcription import whisper_engine


class Models:
    """Owns the models and the audio decoder of this process; each is loaded at most once, on first use. A context manager."""

    def __init__(self, whisper: str | None, device: str, folder: Path, encoder: SpeakerEncoder | None = None) -> None:
        self.loads: Counter[str] = Counter()
        self._name, self._device, self._folder, self._encoder = whisper, device, folder, encoder
        self._open = ExitStack()

    @cached_property
    def decoder(self) -> AudioDecoder:
        """Audio decoder; its temporary samples go to `folder`."""
        return self._open.enter_context(AudioDecoder(self._folder))

    @cached_property
    def vad(self) -> Any:
        self.loads["vad"] += 1
        return vad.load_vad()

    @cached_property
    def whisper(self) -> Any:
        assert self._name, "no Whisper was requested"
        self.loads["whisper"] += 1
        return whisper_engine.load_whisper(self._name, self._device)

    @cached_property
    def encoder(self) -> LoadedSpeakerEncoder:
        assert self._encoder, "no speaker check was requested"
        self.loads["speaker_encoder"] += 1
        return self._encoder.load(self._device)

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


class LazyAudio:
    """Samples of one recording, decoded on first use: `master` at `MASTER_RATE`, `speech_audio` at `SPEECH_RATE` for VAD and Whisper."""

    def __init__(self, path: Path, models: Models) -> None:
        self._path, self._models = path, models

    @cached_property
    def track(self) -> Track:
        return self._models.decoder.probe(self._path)

    @cached_property
    def _decoded(self) -> tuple[Audio, Audio]:
        return self._models.decoder.load(self._path, self.track)

    @property
    def master(self) -> Audio:
        return self._decoded[0]

    @property
    def speech_audio(self) -> Audio:
        return self._decoded[1]
