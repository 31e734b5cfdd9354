"""Notices for the user about recordings and texts: one list that the terminal, summary.json and the report show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from overtone.finetune.terminal import print_diagnostic

SHOWN = 3
"""Recordings named in a line; summary.json names all."""


class Notice(BaseModel):
    """A warning or a note about some recordings."""

    model_config = ConfigDict(frozen=True)

    text: str
    recordings: tuple[str, ...] = ()
    """Names of the recordings; empty: the dataset as a whole."""
    is_warning: bool = True


def list_names(names: Sequence[str]) -> str:
    """Format names as `a.wav, b.wav, c.wav and 4 more`."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def format_notice(notice: Notice) -> str:
    """Format a notice as one line: `warning: a.wav: what is wrong, and what to do`."""
    parts = ["warning" if notice.is_warning else "note", *([list_names(notice.recordings)] if notice.recordings else []), notice.text]
    return ": ".join(parts)


def print_notices(notices: Sequence[Notice]) -> None:
    """Show notices in the terminal, one line each."""
    for notice in notices:
        print_diagnostic(format_notice(notice))


def join_all_texts(notices: Sequence[Notice]) -> dict[str, str]:
    """Return recording → text of its notices, in their order; recordings without a notice are omitted."""
    texts: dict[str, dict[str, None]] = defaultdict(dict)
    for notice in notices:
        for name in notice.recordings:
            texts[name][notice.text] = None
    return {name: "; ".join(of_one) for name, of_one in texts.items()}
