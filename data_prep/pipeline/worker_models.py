"""Lazily loaded models of a worker: voice activity detection, Whisper, speaker encoder, sound scorer and aligner, and its audio decoder."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.alignment.interface import Aligner, LoadedAligner
from overtone.data_prep.audio.sandboxed_decoder import AudioDecoder
from overtone.data_prep.audio_codecs.interface import LoadedSpeakerEncoder, SpeakerEncoder
from overtone.data_prep.clips.dnsmos import LoadedSoundScorer, SoundScorer
from overtone.data_prep.segmentation import vad
from overtone.data_prep.segmentation.vad import SpeechDetector
from overtone.data_prep.transcription import whisper_engine
from overtone.data_prep.transcription.whisper_languages import WHISPER_OPTION

if TYPE_CHECKING:
    from faster_whisper import WhisperModel
    from whisper import Whisper


class Models:
    """Owns the models and the audio decoder of this process; each is loaded at most once, on first use. Use it as a context manager."""

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
    def whisper(self) -> Whisper | WhisperModel:
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
