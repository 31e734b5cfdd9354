"""Reads chats that WhatsApp exported: `.txt` files of Android and iOS, and the `.zip` archives that contain them.

A message begins with its time and the name of its author, in the form of the phone's region:

    [12.03.24, 14:05:33] Anna: text          iOS
    12/03/2024, 14:05 - Anna: text           Android
    3/12/24, 2:05 PM - Anna: text            with AM and PM, often after a narrow no-break space

Other lines continue the message before. Lines with a time and without an author are about the chat ("Anna left"). Those, and placeholders
for media and deleted messages, are left out and counted. iOS marks all of them with an invisible left-to-right mark.

The answers are those of one person. Messages of one author in a row become one turn. In a group, the others' messages become one turn of
the user, each with its author's name. A pause of more than `pause_hours` begins another conversation. A conversation begins with the first
message of the others and ends with the last answer.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import input_files
from overtone.finetune.storage.strict_json import one_line
from overtone.finetune.storage.text_lines import split_lines

DEFAULT_PAUSE_HOURS = 6.0
LARGEST_BYTES = 2**30
"""Maximum bytes of a text, unpacked."""
SNIFFED_BYTES = 2**14
MARKS = "\u200e\u200f\u202a\u202b\u202c\ufeff"
"""Invisible marks of direction that WhatsApp writes before names, times and its own texts."""
DATE = r"(\d{1,4})[./-] ?(\d{1,2})[./-] ?(\d{1,4})\.?"
TIME = r"(?:(上午|下午|午前|午後|오전|오후) ?)?(\d{1,2})[:.](\d{2})(?:[:.](\d{2}))?(?:\s?([AaPp])\.?\s?[Mm]\.?)?(?: Uhr)?"
STAMP = rf"{DATE},?\s+(?:(?:klo|um|at|alle|kl\.) )?{TIME}"
BEGINNING = re.compile(rf"[{MARKS}]*(?:\[{STAMP}\]\s|{STAMP}\s[-–]\s)(.*)", re.DOTALL)
AFTERNOON = frozenset({"下午", "午後", "오후", "p", "P"})
QUOTES = '"“”„«»'
"""Quotation marks, which in an apparent name show that it is a message of WhatsApp: `Anna changed the subject to "Plans: trip"`."""
SUFFIXES = "jpe?g|png|webp|gif|heic|mp4|3gp|mov|opus|ogg|mp3|m4a|aac|pdf|docx?|xlsx?|pptx?|csv|txt|zip|vcf|was"
PLACEHOLDER = re.compile(
    rf"<(?=[^<>]*[^<>!-~])[^<>\n]{{3,80}}>|[^\n/]+\.(?:{SUFFIXES}) \([^()\n]{{3,60}}\)(?:\n.*)?", re.DOTALL | re.IGNORECASE
)
"""<Media omitted> in any language, and a file's name with (file attached), whose caption is about what a model cannot see."""
DELETED = frozenset(
    {
        "this message was deleted",
        "you deleted this message",
        "diese nachricht wurde gelöscht",
        "du hast diese nachricht gelöscht",
        "ce message a été supprimé",
        "vous avez supprimé ce message",
        "se eliminó este mensaje",
        "eliminaste este mensaje",
        "questo messaggio è stato eliminato",
        "hai eliminato questo messaggio",
        "mensagem apagada",
        "você apagou esta mensagem",
        "dit bericht is verwijderd",
        "null",
    }
)
EDITED = re.compile(rf"\s*[{MARKS}]*<(?:This message was edited|Diese Nachricht wurde bearbeitet|Ce message a été modifié|Se editó este "
                    r"mensaje|Questo messaggio è stato modificato|Mensagem editada|Dit bericht is bewerkt)\.?>$")  # fmt: skip
SYSTEM, MEDIA = "WhatsApp's own messages", "media and deleted messages"
UNUSED = "messages before the first or after the last turn of a conversation"
UNANSWERED = "messages of conversations without an answer"


Stamp = tuple[str, ...]
"""The three numbers of a date, the mark for AM or PM before the time, hour, minute, second, and A or P after the time; empty if absent."""


class ChatMessage(NamedTuple):
    """One message of a chat."""

    line: int
    """Line of its beginning, counted from 1."""
    time: datetime
    author: str
    """Name of its author; empty for a message of WhatsApp itself."""
    text: str


class Conversation(NamedTuple):
    """A part of a chat without long pauses."""

    line: int
    messages: list[dict[str, str]]
    """Messages {role, content}."""


class ExportedChat(NamedTuple):
    """The conversations of a file, and the kinds of messages that are not in them → count."""

    conversations: list[Conversation]
    left_out: Counter[str]


def is_exported_chat(path: Path) -> bool:
    """Return whether a file is a chat that WhatsApp exported, or an archive with one."""
    try:
        return any(True for _ in _read_texts(path, SNIFFED_BYTES))
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return False


def count_authors(path: Path) -> Counter[str]:
    """Return name → number of messages that are neither WhatsApp's own nor placeholders."""
    return Counter(message.author for messages in _read_chats(path) for message in messages if _classify(message) is None)


def read_conversations(path: Path, person: str, pause_hours: float) -> ExportedChat:
    """Return the conversations of a file, with the messages of `person` as answers; see the module's docstring."""
    found, left_out = list[Conversation](), Counter[str]()
    for messages in _read_chats(path):
        kinds = [_classify(message) for message in messages]
        left_out.update(kind for kind in kinds if kind)
        kept = [message for message, kind in zip(messages, kinds, strict=True) if kind is None]
        is_group = len({message.author for message in kept} - {person}) > 1
        for part in _split_at_pauses(kept, timedelta(hours=pause_hours)):
            turns = _trim([[*turn] for _, turn in groupby(part, lambda message: message.author == person)], person)
            used = sum(map(len, turns))
            left_out[UNUSED if turns else UNANSWERED] += len(part) - used
            if turns:
                found.append(Conversation(turns[0][0].line, [_make_turn(turn, person, is_group) for turn in turns]))
    return ExportedChat(found, +left_out)


def _trim(turns: list[list[ChatMessage]], person: str) -> list[list[ChatMessage]]:
    """Return the turns from the first of the others to the last answer."""
    begin = 1 if turns[0][0].author == person else 0
    end = len(turns) if turns[-1][0].author == person else len(turns) - 1
    return turns[begin:end]


def _make_turn(turn: Sequence[ChatMessage], person: str, is_group: bool) -> dict[str, str]:
    """Return consecutive messages as one; in a group, each message of the others begins with its author's name."""
    if turn[0].author == person or not is_group:
        role = "assistant" if turn[0].author == person else "user"
        return {"role": role, "content": "\n".join(_clean(message.text) for message in turn)}
    authors = groupby(turn, lambda message: message.author)
    return {"role": "user", "content": "\n".join(f"{author}: " + "\n".join(_clean(one.text) for one in group) for author, group in authors)}


def _clean(text: str) -> str:
    return text.strip(f"{MARKS} \n")


def _split_at_pauses(messages: Sequence[ChatMessage], pause: timedelta) -> Iterator[list[ChatMessage]]:
    part: list[ChatMessage] = []
    for message in messages:
        if part and message.time - part[-1].time > pause:
            yield part
            part = []
        part.append(message)
    if part:
        yield part


def _classify(message: ChatMessage) -> str | None:
    """Return why a message is left out; None if it is not."""
    if not message.author:
        return SYSTEM
    text = _clean(message.text)
    is_marked = message.text.startswith("\u200e")
    return MEDIA if is_marked or not text or PLACEHOLDER.fullmatch(text) or text.rstrip(".").lower() in DELETED else None


def _read_texts(path: Path, most: int) -> Iterator[bytes]:
    """Yield the text of a file, or each text of an archive by name, if it begins like a chat; at most `most` bytes of each."""
    if not zipfile.is_zipfile(path):
        with input_files.open_file(path) as file:
            yield from _keep_chat(file.read(most))
        return
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            if info.filename.lower().endswith(".txt") and not info.filename.startswith("__MACOSX"):
                with archive.open(info) as member:
                    yield from _keep_chat(member.read(most))


def _keep_chat(raw: bytes) -> list[bytes]:
    head = raw[:SNIFFED_BYTES].decode("utf-8-sig", "replace")
    first = next((line for line in split_lines(head) if line.strip()), "")
    return [raw] if BEGINNING.fullmatch(first) else []


def _read_chats(path: Path) -> Iterator[list[ChatMessage]]:
    """Yield the messages of each text of a file. Raises `UserError` for a text that is too long or not UTF-8, and for a bad time or
    archive."""
    try:
        for raw in _read_texts(path, LARGEST_BYTES + 1):
            if len(raw) > LARGEST_BYTES:
                raise UserError(f"{path} has a text of more than {LARGEST_BYTES:,} bytes; export the chat in parts")
            yield _parse_chat(path, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not in UTF-8 (byte {error.start}); export the chat again") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:  # broken, an unknown method, encrypted
        raise UserError(f"{path} cannot be unpacked ({one_line(error)})") from None


def _parse_chat(path: Path, text: str) -> list[ChatMessage]:
    begun = list[tuple[int, Stamp, list[str]]]()
    for number, line in enumerate(split_lines(text), start=1):
        if match := BEGINNING.fullmatch(line):
            groups = tuple(group or "" for group in match.groups())
            begun.append((number, groups[:8] if groups[0] else groups[8:16], [groups[16]]))
        elif begun:
            begun[-1][2].append(line)
    order = _choose_date_order([stamp for _, stamp, _ in begun])
    messages: list[ChatMessage] = []
    for number, stamp, lines in begun:
        try:
            time = _make_time(stamp, order)
        except ValueError as error:
            raise UserError(f"{path}:{number}: an impossible time ({error}); correct or remove the line") from None
        messages.append(_make_message(number, time, "\n".join(lines)))
    return messages


def _make_message(line: int, time: datetime, text: str) -> ChatMessage:
    """Return the message of `text`, which begins with the name of its author unless WhatsApp itself wrote it."""
    first = text.partition("\n")[0]
    author, colon, _ = first.partition(": ")
    if not colon and first.endswith(":"):  # the message is empty, or begins with a line break
        author, colon = first[:-1], ":"
    if not colon or author.startswith("\u200e") or not {*QUOTES}.isdisjoint(author):
        return ChatMessage(line, time, "", text)
    content = EDITED.sub("", text[len(author) + len(colon) :]).rstrip()
    return ChatMessage(line, time, author.strip(f"{MARKS}~\u202f\xa0 "), content)


def _choose_date_order(stamps: Sequence[Stamp]) -> tuple[int, int, int]:
    """Return the places of year, month and day in a date: the order in which all dates exist, and the fewest messages are older than the
    one before. If several orders fit equally: the month first with AM and PM in capitals, as in the US, else the day first."""
    day_first, month_first = (2, 1, 0), (2, 0, 1)
    is_american = any(stamp[7] in ("A", "P") for stamp in stamps)
    orders = [(0, 1, 2), month_first, day_first] if is_american else [(0, 1, 2), day_first, month_first]

    def count_faults(order: tuple[int, int, int]) -> tuple[int, int]:
        times, impossible = list[datetime](), 0
        for stamp in stamps:
            try:
                times.append(_make_time(stamp, order))
            except ValueError:
                impossible += 1
        return impossible, sum(after < before for before, after in pairwise(times))

    return min(orders, key=count_faults)


def _make_time(stamp: Stamp, order: tuple[int, int, int]) -> datetime:
    """Return the time of a stamp. Raises `ValueError` if it does not exist."""
    parts = [int(part) for part in stamp[:3]]
    year, month, day = (parts[place] for place in order)
    if len(stamp[order[0]]) not in ((4,) if order[0] == 0 else (2, 4)):
        raise ValueError(f"the year {year}")
    half, hour = stamp[3] or stamp[7], int(stamp[4])
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(f"the hour {hour}")
        hour = hour % 12 + (12 if half in AFTERNOON else 0)
    return datetime(year + 2000 if year < 100 else year, month, day, hour, int(stamp[5]), int(stamp[6] or 0))


def require_person(paths: Sequence[Path], person: str | None) -> str:
    """Return `person`. Raises `UserError`, which lists the names in the chats, if `person` is None or has written none of the messages."""
    authors = sum((count_authors(path) for path in paths), Counter[str]())
    if person is None or person not in authors:
        names = ", ".join(f"{name} ({format_count(count, 'message')})" for name, count in authors.most_common(20))
        wrong = "--as NAME is missing: whose messages are the answers?" if person is None else f"--as {person}: has written no message."
        raise UserError(f"{paths[0]} is a chat that WhatsApp exported. {wrong} The names are {names or 'none'}")
    return person
