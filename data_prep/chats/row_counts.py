"""Row counts of `overtone text`: collected while reading, stored in summary.json, printed at the end."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overtone.data_prep.chats.chat_file_search import format_counts
from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.data_prep.manifest import REJECTS, VAL
from overtone.finetune.errors import format_count
from overtone.finetune.storage.strict_json import one_line

MADE_BY = "overtone text"
TRAINS, VALIDATES, REJECTED = range(3)
SAME = "the same as another"
SHOWN = 12
"""Maximum items of a printed list; the files have all of them."""
NUMBERS = re.compile(r"\d+")
FROM_THE_ROW = re.compile("; its keys are |, found | the arguments of ")
"""Matches the words in a reason after which it quotes the row."""


class UnreadKeys(NamedTuple):
    """Keys of one row that are not read."""

    row: Sequence[str]
    messages: Sequence[str]
    """Unread keys of its messages. They are written anyway, since a chat template can read them."""


@dataclass
class RowCounts:
    """Outcome of the rows read so far."""

    kinds: bytearray = field(default_factory=bytearray)
    """Outcome of each row (TRAINS, VALIDATES, REJECTED), one byte per row, in reading order."""
    by_source: Counter[str] = field(default_factory=Counter)
    """Rows read per source, kept or not."""
    rejects: list[dict[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    unread_keys: Counter[str] = field(default_factory=Counter)
    """Unread key → number of rows kept without it."""
    message_keys: Counter[str] = field(default_factory=Counter)
    """Unread key of messages → number of rows that have it."""
    tidied: int = 0
    joined: int = 0
    """Messages that were joined to the one before."""
    unlearned: int = 0
    """Answers with weight 0."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Kind of message that readers left out of exported chats → count."""
    invisible: Counter[str] = field(default_factory=Counter)
    """Kind of invisible character → number of rows kept with it."""
    unmatchable: int = 0
    """Rows of prompts kept with an answer that no generated one equals."""
    misread: int = 0
    """Rows kept with a text that was decoded wrongly."""
    first_rejected: dict[str, dict[str, str]] = field(default_factory=dict)
    """Reason, as in `reasons` → the first rejected row with it."""
    first_places: dict[bytes, str] = field(default_factory=dict)
    """Digest of each kept row → its location."""

    def find_earlier(self, row: ChatRow, place: str) -> str | None:
        """Return the location of an earlier identical row; None for a new row, whose location is recorded."""
        content = hashlib.sha256(json.dumps(row, sort_keys=True, ensure_ascii=False).encode()).digest()[:16]
        if content in self.first_places:
            return self.first_places[content]
        self.first_places[content] = place
        return None

    def count_kept(self, shape: str, unread: UnreadKeys, tidied: bool, joined: int, unlearned: int) -> None:
        self.shapes[shape] += 1
        self.unread_keys.update(f"{one_line(key):.60}" for key in unread.row)
        self.message_keys.update(f"{one_line(key):.60}" for key in {*unread.messages})
        self.tidied += tidied
        self.joined += joined
        self.unlearned += unlearned

    def count_rejected(self, place: str, reason: str) -> None:
        reason = one_line(reason)
        self.rejects.append({"source": place, "reason": reason})
        # Without the parts that differ from row to row, so that equal reasons are counted together.
        group = SAME if reason.startswith("the same as ") else NUMBERS.sub("N", FROM_THE_ROW.split(reason)[0])
        self.reasons[group] += 1
        self.first_rejected.setdefault(group, self.rejects[-1])


@dataclass(frozen=True)
class ChatSummary:
    """Contents of summary.json, in this order and without what is None. There is no time or machine in it, so that the same files give the
    same bytes."""

    made_by: str
    rows: str | None
    """`pairs` or `labels`, for preference training, or `prompts`."""
    sources: dict[str, int]
    """Source → number of its rows."""
    passed_over: dict[str, int]
    """Kind of file that is not read → number of files."""
    read: int
    train: int
    val: int
    rejected: int
    val_share: float | None
    val_rows: int | None
    val_rows_at_least: int | None
    """Validation rows that were chosen because `val_share` gave fewer."""
    shapes: dict[str, int]
    keys_left_out: dict[str, int]
    keys_of_messages_not_read: dict[str, int] | None
    answers_without_leading_line_breaks: int
    joined_messages: int | None
    answers_with_weight_0: int | None
    left_out_of_exported_chats: dict[str, int] | None
    rows_with_invisible_characters: dict[str, int] | None
    rows_decoded_wrongly: int | None
    rows_with_answers_of_several_lines: int | None
    """Or with one that is neither a text nor a number, in rows of prompts."""
    reasons: dict[str, int]
    first_rejected: dict[str, dict[str, str]]

    def as_json(self) -> dict[str, object]:
        return {key: value for key, value in vars(self).items() if value is not None}


def make_summary(
    tally: RowCounts, skipped: Counter[str], val_share: float, val_rows: int | None, least: int = 0, rows: str | None = None
) -> ChatSummary:
    """Return the summary of all rows. `least`: validation rows that were chosen because `val_share` gave fewer; 0 if it gave enough.
    `rows`: as in the summary."""
    return ChatSummary(
        made_by=MADE_BY,
        rows=rows,
        sources=dict(tally.by_source),
        passed_over=dict(sorted(skipped.items())),
        read=len(tally.kinds),
        train=tally.kinds.count(TRAINS),
        val=tally.kinds.count(VALIDATES),
        rejected=len(tally.rejects),
        val_share=val_share if val_rows is None else None,
        val_rows=val_rows,
        val_rows_at_least=least or None,
        shapes=dict(sorted(tally.shapes.items())),
        keys_left_out=dict(tally.unread_keys.most_common()),
        keys_of_messages_not_read=dict(tally.message_keys.most_common()) or None,
        answers_without_leading_line_breaks=tally.tidied,
        joined_messages=tally.joined or None,
        answers_with_weight_0=tally.unlearned or None,
        left_out_of_exported_chats=dict(tally.left_out.most_common()) or None,
        rows_with_invisible_characters=dict(tally.invisible.most_common()) or None,
        rows_decoded_wrongly=tally.misread or None,
        rows_with_answers_of_several_lines=tally.unmatchable or None,
        reasons=dict(tally.reasons.most_common()),
        first_rejected={reason: tally.first_rejected[reason] for reason, _ in tally.reasons.most_common()},
    )


def format_summary(summary: ChatSummary) -> str:
    """Return the summary for the terminal."""
    found = [
        f"{format_count(summary.read, 'row')} read ({format_counts(summary.shapes)}): {summary.train:,} to train on, "
        f"{summary.val:,} to validate on, {summary.rejected:,} rejected",
        *_format_sources(summary),
        *_format_reasons(summary.reasons, summary.first_rejected),
    ]
    if summary.keys_left_out:
        keys = _join_shown([f"{key} ({format_count(count, 'row')})" for key, count in summary.keys_left_out.items()])
        found.append(f"  unused keys, dropped: {keys}")
    if summary.left_out_of_exported_chats:
        found.append(f"  left out of exported chats: {format_counts(summary.left_out_of_exported_chats)}")
    if summary.keys_of_messages_not_read:
        keys = _join_shown([f"{key} ({format_count(count, 'row')})" for key, count in summary.keys_of_messages_not_read.items()])
        found.append(f"  keys of messages that only a chat template which names them reads: {keys}")
    if summary.answers_without_leading_line_breaks:
        found.append(f"  leading line breaks removed from answers in {format_count(summary.answers_without_leading_line_breaks, 'row')}")
    if (pairs := summary.shapes.get("preference")) and summary.rows is None:
        used = "the chosen answer is trained on, the rejected one is not used (--rows pairs keeps both)"
        found.append(f"  {format_count(pairs, 'preference pair')}: {used}")
    if summary.joined_messages:
        found.append(f"  {format_count(summary.joined_messages, 'message')} joined to the one before (--join-turns)")
    if invisible := summary.rows_with_invisible_characters:
        found.append(f"  rows with invisible characters, which stay as they are: {format_counts(invisible)}")
    if misread := summary.rows_decoded_wrongly:
        found.append(f"  rows that look decoded wrongly (such as Ã© for é, or U+FFFD), which stay as they are: {misread}")
    if unmatchable := summary.rows_with_answers_of_several_lines:
        found.append(
            f"  answers that are neither a number nor one line of text in {format_count(unmatchable, 'row')}: the reward exact_match would "
            "be 0; write a function that compares the result"
        )
    if summary.answers_with_weight_0:
        found.append(f"  {format_count(summary.answers_with_weight_0, 'answer')} with weight 0: read, but not learned")
    if least := summary.val_rows_at_least:
        found.append(
            f"  {summary.val_share:.0%} of so few rows are fewer than {least}, so up to {least} validate; --val-rows sets another number"
        )
    return "\n".join([*found, *_explain_no_validation(summary)])


def explain_no_rows(summary: ChatSummary) -> str:
    """Return the reason why no row is left to train on."""
    first = summary.first_rejected
    return _join_shown([f"{count:,} {_quote_reason(reason, first[reason])}" for reason, count in summary.reasons.items()]) or (
        "the sources have no rows"
    )


def _format_sources(summary: ChatSummary) -> list[str]:
    rows, skipped = summary.sources, summary.passed_over
    found = [f"  from {_join_shown([f'{name} ({count:,})' for name, count in rows.items()])}"] if len(rows) > 1 else []
    if empty := [name for name, count in rows.items() if not count]:
        found.append(f"  sources without rows: {_join_shown(empty)}")
    if skipped:
        found.append(f"  skipped: {_join_shown([f'{count:,} {kind}' for kind, count in skipped.items()])}")
    return found


def _format_reasons(reasons: dict[str, int], first: dict[str, dict[str, str]]) -> list[str]:
    """Return one line per reason, in the wording of the first row that has it."""
    found = [f"  rejected {count:,}: {_quote_reason(reason, first[reason])}" for reason, count in list(reasons.items())[:SHOWN]]
    if len(reasons) > SHOWN:
        found.append(f"  and {len(reasons) - SHOWN} more reasons")
    return [*found, f"  {REJECTS} lists each rejected row with its location and reason"] if reasons else found


def _quote_reason(group: str, first: dict[str, str]) -> str:
    return group if group == SAME else f"{first['reason']} ({first['source']})"


def _explain_no_validation(summary: ChatSummary) -> list[str]:
    if summary.val:
        return []
    if wanted := summary.val_rows or summary.val_rows_at_least:
        every = f"every group of rows with the same first question has more than {wanted:,} rows"
        return [f"  {every}, so there is no {VAL}; give a larger --val-rows"]
    if summary.val_share:
        return [
            f"  no row was selected for the {summary.val_share:.0%} to validate on, so there is no {VAL}; give a larger --val-share, or "
            "--val-rows"
        ]
    return []


def _join_shown(items: list[str]) -> str:
    return ", ".join([*items[:SHOWN], *([f"and {len(items) - SHOWN} more"] if len(items) > SHOWN else [])])
