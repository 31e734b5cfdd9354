"""Subtitles with styles, read by pysubs2: Advanced SubStation (.ass, .ssa) and TTML (.ttml, .dfxp).

pysubs2 silently drops what it does not know, so the cues that it finds are compared with those that are in the file.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError

from overtone.data_prep.recordings.timed_cues import Cue, ParsedCues
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import input_files, strict_json

if TYPE_CHECKING:
    from pysubs2 import SSAEvent

SUBSTATION, TTML = (".ass", ".ssa"), (".ttml", ".dfxp")
SUFFIXES = (*SUBSTATION, *TTML)
FIELDS = {
    ".ass": ["layer", "start", "end", "style", "name", "marginl", "marginr", "marginv", "effect", "text"],
    ".ssa": ["marked", "start", "end", "style", "name", "marginl", "marginr", "marginv", "effect", "text"],
}
"""Order of the fields of an event, as pysubs2 assumes it; `actor` is another name of `name`."""
EVENT = re.compile(r"(Dialogue|Comment):\s*([^,]*),([^,]*),([^,]*),(.*)")
EVENT_TIME = re.compile(r"\s*-?\d{1,2}:\d{1,2}:\d{1,2}(?:[.,]\d{1,3})?\s*")
DECLARATION = re.compile(r"<!\s*(?:DOCTYPE|ENTITY)", re.IGNORECASE)
PARAGRAPH = re.compile(r"<(?:[\w-]+:)?p[\s/>]")
AGENT = re.compile(r"<(?:[\w-]+:)?p\b[^<>]*\bttm:agent\s*=\s*[\"']([^\"']+)[\"']")


def parse_styled(content: str, path: Path) -> ParsedCues:
    """Parse subtitles with styles. Raises `UserError` with the file for those that pysubs2 cannot read, or not as a whole."""
    return _parse_substation(content, path) if path.suffix.lower() in SUBSTATION else _parse_ttml(content, path)


def _parse_substation(content: str, path: Path) -> ParsedCues:
    suffix = path.suffix.lower()
    kept: list[str] = []
    places: list[str] = []
    skipped: list[str] = []
    in_events = False
    for number, line in enumerate(content.split("\n"), start=1):
        bare = line.strip()
        if bare.startswith("["):
            in_events = bare.lower() == "[events]"
            kept.append(bare)
        elif in_events and bare.lower().startswith("format:"):
            _require_usual_fields(bare, suffix, f"{path}:{number}")
        elif in_events and (event := EVENT.fullmatch(bare)):
            if EVENT_TIME.fullmatch(event[3]) and EVENT_TIME.fullmatch(event[4]):
                kept.append(bare)
                places.append(f"{path}:{number}")
            elif event[1] == "Dialogue":
                skipped.append(f"{path}:{number}: invalid times {event[3].strip()[:20]!r} and {event[4].strip()[:20]!r}")
        elif in_events and bare.startswith("Dialogue"):
            skipped.append(f"{path}:{number}: expected start, end and text, found {bare[:60]!r}")
    if not places:
        raise UserError(f"{path} has no lines `Dialogue: …` below [Events]; give the subtitles as .srt, or remove the file")
    events = _read_events("\n".join(kept), path, suffix[1:])
    if len(events) != len(places):
        raise UserError(f"{path}: pysubs2 reads {len(events)} of its {format_count(len(places), 'event')}; save the subtitles as .srt")
    cues = [
        Cue(place, event.start / 1000, event.end / 1000, event.plaintext, event.name.strip() or None)
        for place, event in zip(places, events, strict=True)
        if not event.is_comment and not event.is_drawing and event.plaintext.strip()
    ]
    silent = len(events) - len(cues)
    return ParsedCues(tuple(cues), tuple(skipped), notes=(f"{silent} comments, drawings and empty events left out",) if silent else ())


def _require_usual_fields(line: str, suffix: str, place: str) -> None:
    fields = [field.strip().lower().replace("actor", "name") for field in line.partition(":")[2].split(",")]
    if fields != FIELDS[suffix]:
        raise UserError(f"{place}: the fields of its events are {', '.join(fields)}; expected {', '.join(FIELDS[suffix])}: save it as .srt")


def _parse_ttml(content: str, path: Path) -> ParsedCues:
    if len(content) > input_files.LARGEST_TEXT:
        raise UserError(f"{path} has more than {input_files.LARGEST_TEXT:,} characters; give the subtitles as .srt")
    if DECLARATION.search(content):
        raise UserError(f"{path} declares a document type or entities, which may expand without end; remove it, or give a .srt")
    if len(agents := dict.fromkeys(AGENT.findall(content))) > 1:
        raise UserError(f"{path}: several speakers ({', '.join(agents)}) in one recording; split it by speaker first")
    events = _read_events(content, path, "ttml")
    paragraphs = len(PARAGRAPH.findall(content))
    if len(events) != paragraphs or not events:
        raise UserError(f"{path}: pysubs2 reads {len(events)} of its {format_count(paragraphs, 'paragraph')}; save the subtitles as .srt")
    cues = [Cue(f"{path}: cue {number}", one.start / 1000, one.end / 1000, one.plaintext) for number, one in enumerate(events, start=1)]
    return ParsedCues(tuple(cue for cue in cues if cue.text.strip()))


def _read_events(content: str, path: Path, form: str) -> list[SSAEvent]:
    """Return the events of pysubs2, in the order of the file. It is imported here, since few need it."""
    import pysubs2

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about styles, which are not used
            return pysubs2.SSAFile.from_string(content, format_=form).events
    except ParseError as error:
        raise UserError(f"{path}:{error.position[0]}: not XML ({strict_json.one_line(error)}); save it again, or give a .srt") from None
    except NotImplementedError as error:
        raise UserError(f"{path}: {strict_json.one_line(error)}; give the subtitles as .srt") from None
    except (pysubs2.exceptions.Pysubs2Error, ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as subtitles ({strict_json.one_line(error)}); give them as .srt") from None
