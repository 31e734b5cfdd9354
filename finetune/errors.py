"""The one exception that people are meant to read."""

from __future__ import annotations

import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input or a bad environment. The message names the thing, its value, the place and the next action.

    A verb prints it without a traceback and exits with code 2; any other exception is a bug of ours and keeps its traceback.
    """


class ElsewhereError(UserError):
    """Another rank's `UserError`. This rank ends too, and leaves the telling to that one: eight ranks need not say the same."""


def exit_code(verb: Callable[[list[str]], int], argv: list[str]) -> int:
    """Run a verb's body; a `UserError` becomes a message on stderr and exit code 2."""
    try:
        return verb(argv)
    except ElsewhereError:
        return 2
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return 2


def printable(text: str) -> str:
    """With escapes for what a terminal would obey: a message may hold what stands in somebody's file."""
    return "".join(each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text)
