"""What the package prints. Texts quote file names, data, answers of models and addresses: here, in one place, control characters are
escaped and secrets are hidden."""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import TextIO

from finetune.addresses import hide_secrets

JOINERS = "\u200c\u200d"
"""Format characters that Persian, Indic scripts and emoji need, and that only affect their neighbours."""
COLOUR = re.compile(r"(\x1b\[(?:0|1|(?:1;)?3[0-7])m)")


def print_line(text: object = "") -> None:
    """Print results and progress to standard output."""
    _write(make_safe(str(text)), sys.stdout)


def print_diagnostic(text: object) -> None:
    """Print an error, a warning or a note to standard error."""
    _write(make_safe(str(text)), sys.stderr)


def announce_torch(then: str) -> None:
    """Print to standard error that torch, and `then` something else, is loaded, which takes seconds; nothing if torch has been imported."""
    if "torch" not in sys.modules:
        print_diagnostic(f"loading torch and {then} …")


def print_content(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print data that another program may read, such as an answer or a config, to `stream` (default: standard output).

    It is escaped for a terminal only: a file or a pipe gets exactly the text.
    """
    out = sys.stdout if stream is None else stream
    _write(printable(text) if out.isatty() else text, out, end)


def print_coloured(text: str) -> None:
    """Print a text to standard output. Codes for colour and bold stay, other control characters are escaped."""
    _write("".join(part if COLOUR.fullmatch(part) else make_safe(part) for part in COLOUR.split(text)), sys.stdout)


def make_safe(text: str) -> str:
    """The text without secrets of addresses, and `printable`: for a progress bar, which prints by itself."""
    return printable(hide_secrets(text))


def printable(text: str) -> str:
    """The text with control characters as escape sequences, except line breaks and tabs: also C1 controls, lone surrogates, and format
    characters such as those that reverse the order of a text."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    harmless = character.isprintable() or character in "\n\t" or character in JOINERS or unicodedata.category(character) == "Zs"
    return character if harmless else character.encode("unicode_escape").decode()


def _write(text: str, stream: TextIO, end: str = "\n") -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream, flush=True)
