"""HTML report of a chat dataset: lengths, turns, share of the text that is learned, languages, repetitions, the longest and shortest rows.

Self-contained, without network access, and byte-identical for the same dataset. Rows are read one at a time.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.chats.chat_messages import ChatRow, is_plain_text, is_raw_text, read_messages
from overtone.data_prep.chats.row_counts import MADE_BY
from overtone.data_prep.language_identification import identify_language
from overtone.data_prep.manifest import SUMMARY, TRAIN, VAL
from overtone.data_prep.pages.report_charts import Histogram, make_histogram
from overtone.finetune.errors import UserError
from overtone.finetune.pages.jinja_environment import make_environment, read_style
from overtone.finetune.storage import strict_json

FOLDER = Path(__file__).parent
EXTREMES = 5
"""Longest and shortest rows that are shown."""
REPEATED = 10
"""Repeated questions and answers that are shown."""
SHOWN_CHARACTERS = 600
"""Characters shown of each message of a row."""

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Turn:
    """A message, or one side of a plain prompt and its completion."""

    role: str
    text: str
    learned: bool


@dataclass(frozen=True)
class ReportRow:
    """A row of the dataset."""

    place: str
    turns: tuple[Turn, ...]

    @property
    def text(self) -> str:
        return "\n".join(turn.text for turn in self.turns)

    def shorten(self) -> list[tuple[str, str]]:
        """Return (role, beginning of the text) of each message."""
        return [(t.role, t.text if len(t.text) <= SHOWN_CHARACTERS else t.text[:SHOWN_CHARACTERS] + " …") for t in self.turns]


@dataclass
class ChatFigures:
    """Counts that are collected while the rows are read."""

    rows: Counter[str] = field(default_factory=Counter)
    """File → number of rows."""
    lengths: list[float] = field(default_factory=list)
    """Characters of each row."""
    tokens: list[float] = field(default_factory=list)
    """Tokens of each row's messages, if there is a tokenizer."""
    turns: list[float] = field(default_factory=list)
    """Messages of each row."""
    shares: list[float] = field(default_factory=list)
    """Percentage of each row's characters that is learned."""
    characters: int = 0
    learned: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    questions: Counter[bytes] = field(default_factory=Counter)
    answers: Counter[bytes] = field(default_factory=Counter)
    """Digest of a text without regard to case and spaces → how often it occurs."""
    repeated: dict[bytes, str] = field(default_factory=dict)
    """Digest → the beginning of a text that occurs more than once."""
    longest: list[tuple[int, int, ReportRow]] = field(default_factory=list)
    shortest: list[tuple[int, int, ReportRow]] = field(default_factory=list)

    def add(self, name: str, row: ReportRow, count_tokens: CountTokens | None) -> None:
        """Count a row of the file `name`."""
        size, number = len(row.text), sum(self.rows.values())
        self.rows[name] += 1
        self.lengths.append(size)
        self.turns.append(len(row.turns))
        learned = sum(len(turn.text) for turn in row.turns if turn.learned)
        self.shares.append(100 * learned / max(size, 1))
        self.characters, self.learned = self.characters + size, self.learned + learned
        if count_tokens is not None:
            self.tokens.append(sum(count_tokens(turn.text) for turn in row.turns))
        self.languages[identify_language(row.text) or "unknown (too few letters)"] += 1
        self.roles.update(turn.role for turn in row.turns)
        self._count_text(self.questions, next((turn.text for turn in row.turns if not turn.learned and turn.role != "system"), ""))
        for turn in row.turns:
            if turn.learned:
                self._count_text(self.answers, turn.text)
        keep = heapq.heappush if number < EXTREMES else heapq.heappushpop
        keep(self.longest, (size, -number, row))
        keep(self.shortest, (-size, -number, row))

    def _count_text(self, counts: Counter[bytes], text: str) -> None:
        plain = " ".join(text.lower().split())
        if plain:
            digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()[:12]
            counts[digest] += 1
            if counts[digest] == 2:  # most texts occur once, and would fill the memory
                self.repeated[digest] = text[:200]

    def list_repeated(self, counts: Counter[bytes]) -> list[tuple[str, int]]:
        """Return (text, number) of what occurs most often, if more than once."""
        return [(self.repeated[digest], count) for digest, count in counts.most_common(REPEATED) if count > 1]


def is_chat_dataset(folder: Path) -> bool:
    """Return whether a folder was written by `overtone text`, or has rows of chats."""
    if (folder / SUMMARY).is_file():
        return bool(strict_json.read_object(folder / SUMMARY).get("made_by") == MADE_BY)
    row = next(manifest.read_lines(folder / TRAIN), (0, {}))[1] if (folder / TRAIN).is_file() else {}
    return bool(row.keys() & {"messages", "completion", "chosen"})


def read_figures(folder: Path, count_tokens: CountTokens | None) -> ChatFigures:
    """Count the rows of a dataset. Raises `UserError` with file and line for a row that is not a chat."""
    figures = ChatFigures()
    for name in (TRAIN, VAL):
        for row in read_rows(folder / name):
            figures.add(name, row, count_tokens)
    if not figures.rows:
        raise UserError(f"{folder}: no rows in {TRAIN} or {VAL}; run overtone text again")
    return figures


def read_rows(path: Path) -> Iterator[ReportRow]:
    """Yield the rows of a file; none if it does not exist. Raises `UserError` with file and line for a row that is not a chat."""
    for number, row in manifest.read_lines(path) if path.is_file() else ():
        try:
            yield ReportRow(f"{path.name}:{number}", tuple(_read_turns(row)))
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None


def _read_turns(row: ChatRow) -> Iterator[Turn]:
    if "chosen" in row:
        chosen, rejected = (_read_turns({"prompt": row["prompt"], "completion": row[name]}) for name in ("chosen", "rejected"))
        yield from chosen
        before = 1 if isinstance(row["prompt"], str) else len(row["prompt"])
        yield from (replace(turn, role=f"rejected: {turn.role}", learned=False) for turn in [*rejected][before:])
        return
    if isinstance(row.get("prompt"), list) and "completion" not in row:  # its answers are made in training
        yield from (replace(turn, learned=False) for turn in _read_turns({"messages": row["prompt"], "tools": row.get("tools")}))
        return
    if is_raw_text(row):
        yield Turn("text", row["text"], learned=True)
        return
    if is_plain_text(row):
        yield Turn("prompt", row["prompt"], learned=False)
        yield Turn("completion", row["completion"], learned=True)
        return
    messages, first = read_messages(row)
    for number, message in enumerate(messages):
        calls = [json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls", ())]
        text = "\n".join(filter(None, [message.get("content") or "", *calls]))
        learned = number >= first and message["role"] == "assistant" and message.get("weight") != 0
        yield Turn(str(message["role"]), text, learned)


def render_page(folder: Path, figures: ChatFigures, tokenizer: str | None) -> str:
    """Return the report as HTML. `tokenizer`: its name, if tokens were counted."""
    summary = strict_json.read_object(folder / SUMMARY) if (folder / SUMMARY).is_file() else {}
    return (
        make_environment(FOLDER)
        .get_template("chat_report.html")
        .render(
            name=folder.resolve().name,
            figures=figures,
            rows=sum(figures.rows.values()),
            rejected=summary.get("rejected", 0),
            reasons=summary.get("reasons", {}),
            unread=summary.get("keys_left_out", {}),
            histograms=list(_make_histograms(figures)),
            questions=figures.list_repeated(figures.questions),
            answers=figures.list_repeated(figures.answers),
            extremes=[
                ("Longest rows", [row for *_, row in sorted(figures.longest, key=lambda each: each[:2], reverse=True)]),
                ("Shortest rows", [row for *_, row in sorted(figures.shortest, key=lambda each: each[:2], reverse=True)]),
            ],
            tokenizer=tokenizer,
            tokens=int(sum(figures.tokens)),
            style=read_style() + (FOLDER / "chat_report.css").read_text(encoding="utf-8"),
        )
    )


def _make_histograms(figures: ChatFigures) -> Iterator[Histogram]:
    for title, unit, values in (
        ("Length", "characters", figures.lengths),
        ("Tokens of the messages", "tokens, without the template", figures.tokens),
        ("Messages", "of a row", figures.turns),
        ("Learned", "% of a row's characters", figures.shares),
    ):
        if (histogram := make_histogram(title, unit, values, [])) is not None:
            yield histogram
