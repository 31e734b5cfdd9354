"""Gives columns of tables, and keys of messages, the names of the chat formats: `--columns prompt=frage,completion=antwort`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.data_prep.chats.conversation_formats import LABELS, MESSAGE_LISTS, SHAPES, ShapeError, decode_json, format_keys
from overtone.finetune.errors import UserError

ROW_NAMES = frozenset[str]((*LABELS, "text")).union(*(shape.keys | shape.also for shape in SHAPES.values()))
MESSAGE_NAMES = ("role", "content")


@dataclass(frozen=True)
class ColumnMapping:
    """Names of the chat formats → names in the input. Columns that are not mapped keep their names."""

    row: Mapping[str, str] = field(default_factory=dict)
    message: Mapping[str, str] = field(default_factory=dict)

    def translate(self, row: ChatRow) -> ChatRow:
        """Return the row with the names of the chat formats; a column that had one of them already is replaced.

        Raises `ShapeError` with the columns found if one is missing.
        """
        if missing := sorted({*self.row.values()} - row.keys()):
            raise ShapeError(f"no column {' and no '.join(missing)}, which --columns names; its keys are {format_keys(row)}")
        rest = {key: value for key, value in row.items() if key not in {*self.row.values()}}
        renamed = rest | {name: row[column] for name, column in self.row.items()}
        lists = MESSAGE_LISTS & renamed.keys() if self.message else ()
        return renamed | {key: self._rename_messages(renamed[key], key) for key in lists}

    def list_replaced(self, row: ChatRow) -> list[str]:
        """Return the columns of a row that are not used because other columns take their names."""
        return sorted((self.row.keys() & row.keys()) - {*self.row.values()})

    def _rename_messages(self, value: object, what: str) -> object:
        turns = decode_json(value, what) if isinstance(value, str) and value.lstrip().startswith("[") else value
        if not isinstance(turns, list):
            return value
        return [self._rename_message(turn, f"{what}[{number}]") if isinstance(turn, dict) else turn for number, turn in enumerate(turns)]

    def _rename_message(self, turn: ChatRow, what: str) -> ChatRow:
        if missing := sorted({*self.message.values()} - turn.keys()):
            raise ShapeError(f"no {' and no '.join(missing)} in {what}, which --columns names; its keys are {format_keys(turn)}")
        rest = {key: value for key, value in turn.items() if key not in {*self.message.values(), *self.message}}
        return rest | {name: turn[key] for name, key in self.message.items()}


def parse_columns(given: Sequence[str]) -> ColumnMapping:
    """Return the mapping of each `--columns NAME=COLUMN,…`. Raises `UserError` for a name that no format has, and for one that is given
    twice."""
    pairs = (pair.partition("=") for words in given for pair in words.split(","))
    return map_columns([(name.strip(), column.strip()) for name, _, column in pairs])


def map_columns(pairs: Iterable[tuple[str, str]]) -> ColumnMapping:
    """Return the mapping of names of the formats to columns. Raises `UserError` as `parse_columns`."""
    row, message = dict[str, str](), dict[str, str]()
    for name, column in pairs:
        known, shown = message if name in MESSAGE_NAMES else row, f"{name}={column}"
        if not name or not column or name in known:
            raise UserError(f"--columns {shown}: expected NAME=COLUMN, each name once, as in prompt=frage,completion=antwort")
        if name not in ROW_NAMES and name not in MESSAGE_NAMES:
            raise UserError(f"--columns {shown}: no chat format has {name}; known are {', '.join([*sorted(ROW_NAMES), *MESSAGE_NAMES])}")
        known[name] = column
    return ColumnMapping(row, message)
