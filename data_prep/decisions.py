"""What a person decided about single clips: `DATASET/review.jsonl`, one decision a line, and for each clip the last line holds.

`review` adds lines; `voice` reads them and applies them after its rules. The file may also be written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from finetune import files, strict_json
from finetune.errors import UserError

REVIEW = "review.jsonl"

Action = Literal["keep", "reject", "text", "undo"]


class Decision(BaseModel):
    """About one clip, named by the `id` of its row. Ids stay the same while the recording and the cuts do."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    id: str = Field(min_length=1)
    action: Action
    """keep: use it whatever the rules say; reject: do not; text: judge it with `text`; undo: as if nothing had been decided."""
    text: str | None = Field(default=None, min_length=1)
    """What is said in the clip, in place of what was heard. A clip that is kept may have one too."""
    note: str | None = None

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        if self.action == "text" and self.text is None:
            raise ValueError('the action "text" needs a "text"')
        return self


def read(folder: Path) -> dict[str, Decision]:
    """Id → the decision that holds; {} without a file. What was undone is not in it.

    Raises `UserError` with file and line for what is no decision. A last line that a crash left half written is ignored, and told.
    """
    whole, torn = _lines(folder / REVIEW)
    if torn:
        print(f"warning: {folder / REVIEW}: its last line is half written and was ignored: {_shown(torn)}", file=sys.stderr)
    decisions = [_decision(folder / REVIEW, number, line) for number, line in enumerate(whole, start=1) if line.strip()]
    last = {decision.id: decision for decision in decisions}
    return {id: decision for id, decision in last.items() if decision.action != "undo"}


def add(folder: Path, decision: Decision) -> None:
    """Write one decision to the end of the file."""
    path = folder / REVIEW
    whole, torn = _lines(path)
    if torn:  # a half line in the middle would be an error for good
        files.write_bytes(path, b"".join(line + b"\n" for line in whole))
    files.append_line(path, decision.model_dump_json(exclude_none=True))


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """The lines, and what stands after them that is only the beginning of one."""
    if not path.exists():
        return [], b""
    *whole, last = path.read_bytes().split(b"\n")
    return (whole, last) if last and not _is_json(last) else ([*whole, last], b"")


def _is_json(line: bytes) -> bool:
    """Whether a line is whole: what is, and is no decision, is a slip of a person and not the trace of a crash."""
    try:
        strict_json.loads(line)
    except ValueError:
        return False
    return True


def _decision(path: Path, number: int, line: bytes) -> Decision:
    try:
        return Decision.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}:{number}: {where + ': ' if where else ''}{first['msg']}: {_shown(line)}; expected is "
            '{"id": …, "action": "keep", "reject" or "text", "text": …, "note": …}; correct or remove the line'
        ) from error


def _shown(line: bytes) -> str:
    return repr(line.decode("utf-8", errors="replace")[:80])
