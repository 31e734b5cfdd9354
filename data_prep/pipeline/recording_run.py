"""The work of one worker on one recording: what is processed, with which settings and models, and where its results are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.pipeline.recording_results import Job
from overtone.data_prep.pipeline.speech_detection import locate_samples, make_speech_inputs
from overtone.data_prep.pipeline.stage_cache import Stages, make_key
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.user_transcripts import UserTranscript


@dataclass(frozen=True)
class RecordingRun:
    """A recording with everything that its stages need."""

    source: RecordingSource
    transcript: UserTranscript | None
    """The user's transcript; None: Whisper transcribes."""
    job: Job
    stages: Stages
    models: Models

    @property
    def language(self) -> str | None:
        """The full name of the language, if the user gave it, or if the table that the transcript comes from names it."""
        of_table = self.transcript.language if self.transcript else ""
        return self.job.language or (manifest.parse_locale(of_table) if of_table else None)

    @property
    def has_one_text(self) -> bool:
        """True if the user's transcript is a single text for the whole recording, without times."""
        return self.transcript is not None and bool(self.transcript.text)

    @property
    def samples(self) -> Path:
        """Folder of the decoded samples, if the recording is divided into parts."""
        return locate_samples(self.source, self.stages.folder)

    @property
    def speech_key(self) -> str:
        """Digest of what the speech detection depends on: part of the cache keys of later stages."""
        return make_key(make_speech_inputs(self.source))
