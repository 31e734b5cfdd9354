"""Speakers of recordings, taken from transcripts that name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from overtone.data_prep.manifest import parse_speaker
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.finetune.errors import UserError

SHOWN = 3


def list_speakers(texts: Mapping[str, UserTranscript | None]) -> dict[str, str]:
    """Return recording name → speaker, for recordings whose transcript names one."""
    return {name: text.speaker for name, text in texts.items() if text and text.speaker}


def assign_speakers(sources: list[RecordingSource], texts: Mapping[str, UserTranscript | None]) -> list[RecordingSource]:
    """Return the sources with the speakers of their transcripts. Raises `UserError` for a transcript without a speaker.

    Sources without a transcript are unchanged; they are rejected later.
    """
    named = list_speakers(texts)
    nameless = [source.name for source in sources if texts.get(source.name) and source.name not in named]
    if nameless or not named:
        raise UserError(
            f"--speaker-from transcript: the transcript of {nameless[0] if nameless else 'every recording'} names no speaker; "
            "use lines id|speaker|text in metadata.csv"
        )
    return [dataclasses.replace(source, speaker=parse_speaker(named.get(source.name, source.speaker))) for source in sources]


def require_one_speaker(texts: Mapping[str, UserTranscript | None]) -> str | None:
    """Return the speaker that the transcripts name; None if they name none. Raises `UserError` if they name several, which would otherwise
    be merged into one voice."""
    names = sorted(set(list_speakers(texts).values()))
    if len(names) > 1:
        raise UserError(
            f"the transcripts name {len(names)} speakers ({', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}); use "
            "--speaker-from transcript, or --speaker NAME to treat all recordings as one speaker"
        )
    return names[0] if names else None
