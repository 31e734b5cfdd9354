"""Who speaks in which recording, where transcripts say it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from data_prep.manifest import speaker_name
from data_prep.sources import Source
from data_prep.transcripts import Transcript
from finetune.errors import UserError

SHOWN = 3


def named_by(texts: Mapping[str, Transcript | None]) -> dict[str, str]:
    """Name of the recording → its speaker, for those of which the transcript says it."""
    return {name: text.speaker for name, text in texts.items() if text and text.speaker}


def from_transcripts(sources: list[Source], texts: Mapping[str, Transcript | None]) -> list[Source]:
    """The sources with the speakers that their transcripts name. Raises `UserError` for a transcript that names none.

    Sources without a transcript, which are rejected later, stay as they are.
    """
    named = named_by(texts)
    nameless = [source.name for source in sources if texts.get(source.name) and source.name not in named]
    if nameless or not named:
        raise UserError(
            f"--speaker-from transcript: the transcript of {nameless[0] if nameless else 'every recording'} names no speaker; "
            "lines id|speaker|text in metadata.csv do"
        )
    return [dataclasses.replace(source, speaker=speaker_name(named.get(source.name, source.speaker))) for source in sources]


def require_one(texts: Mapping[str, Transcript | None]) -> None:
    """Names that nobody asks for would make one voice of several. Raises `UserError`."""
    names = sorted(set(named_by(texts).values()))
    if len(names) > 1:
        raise UserError(
            f"the transcripts name {len(names)} speakers ({', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}); say "
            "--speaker-from transcript, or --speaker NAME to take all of it as one voice"
        )
