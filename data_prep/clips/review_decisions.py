"""Review decisions about clips: `DATASET/review.jsonl`, one decision per line; the last line of a clip counts.

The verb `review` appends lines; `voice` applies them after its quality rules. The file may also be written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.terminal import print_diagnostic

REVIEW = "review.jsonl"

Action = Literal["keep", "reject", "text", "undo"]


class Decision(BaseModel):
    """Decision about one clip, identified by the `id` of its row. Ids are stable as long as the recording and its cuts are."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    id: str = Field(min_length=1)
    action: Action
    """keep: keep regardless of the rules; reject; text: apply the rules with `text`; undo: remove the decision."""
    text: str | None = Field(default=None, min_length=1)
    """Corrected transcript of the clip, without invisible characters; also allowed with "keep"."""
    note: str | None = None

    @field_validator("text", mode="before")
    @classmethod
    def _remove_invisible(cls, text: object) -> object:
        return remove_invisible(text)[0] if isinstance(text, str) else text

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        if self.action == "text" and self.text is None:
            raise ValueError('the action "text" needs a "text"')
        return self


def read_decisions(folder: Path) -> dict[str, Decision]:
    """Return clip id → decision in effect, without undone ones; {} without a file.

    Raises `UserError` with file and line for an invalid decision. A last line that a crash left incomplete is ignored with a warning.
    """
    whole, torn = _read_lines(folder / REVIEW)
    if torn:
        print_diagnostic(f"warning: {folder / REVIEW}: the last line is incomplete and was ignored: {_quote_line(torn)}")
    decisions = [_parse_decision(folder / REVIEW, number, line) for number, line in enumerate(whole, start=1) if line.strip()]
    last = {decision.id: decision for decision in decisions}
    return {id: decision for id, decision in last.items() if decision.action != "undo"}


def append_decision(folder: Path, decision: Decision) -> None:
    """Append one decision to the file."""
    path = folder / REVIEW
    whole, torn = _read_lines(path)
    if torn:  # an incomplete line in the middle would be a permanent error
        files.write_bytes(path, b"".join(line + b"\n" for line in whole))
    files.append_line(path, decision.model_dump_json(exclude_none=True))


def _read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """Return the complete lines, and an incomplete last line or b""."""
    if not path.exists():
        return [], b""
    *whole, last = input_files.read_bytes(path).split(b"\n")
    return (whole, last) if last and not _is_json(last) else ([*whole, last], b"")


def _is_json(line: bytes) -> bool:
    """Return whether a line is complete JSON. A complete line that is not a decision is a user error, not the trace of a crash."""
    try:
        strict_json.loads(line)
    except ValueError:
        return False
    return True


def _parse_decision(path: Path, number: int, line: bytes) -> Decision:
    try:
        return Decision.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}:{number}: {where + ': ' if where else ''}{first['msg']}: {_quote_line(line)}; expected "
            '{"id": …, "action": "keep", "reject" or "text", "text": …, "note": …}; correct or remove the line'
        ) from error


def _quote_line(line: bytes) -> str:
    return repr(line.decode("utf-8", errors="replace")[:80])
