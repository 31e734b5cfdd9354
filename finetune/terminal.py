"""Printing of the package. Texts quote file names, data, answers of models and addresses: here, in one place, control characters are
escaped and secrets are hidden."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import traceback
import unicodedata
import warnings
from types import TracebackType
from typing import TextIO

from overtone.finetune.addresses import hide_secrets

JOINERS = "\u200c\u200d"
"""Format characters that Persian, Indic scripts and emoji need, and that only affect their neighbours."""
COLOUR = re.compile(r"(\x1b\[(?:0|1|(?:1;)?3[0-7])m)")


def protect_terminal() -> None:
    """Make tracebacks, warnings and log records of this process safe as well: they quote file names, and libraries print them. Progress
    bars of libraries only go to a terminal, since in a file they would be one long line. Call it only at the beginning of a program or a
    worker process, since it changes the interpreter."""
    if not is_terminal(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # huggingface_hub and transformers read it when they are imported
    sys.excepthook = _print_traceback
    threading.excepthook = _print_traceback_of_thread
    warnings.showwarning = _print_warning
    logging.setLogRecordFactory(SafeLogRecord)


class SafeLogRecord(logging.LogRecord):
    """A log record whose message and traceback are safe to print, whichever handler does."""

    def getMessage(self) -> str:  # noqa: N802 - the name in `logging`
        if self.exc_info and not self.exc_text:
            self.exc_text = make_safe("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))  # a formatter would write its own
        return make_safe(super().getMessage())


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


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal. False for an object that notebooks and test runners put in place of a standard stream."""
    check = getattr(stream, "isatty", None)
    return check is not None and bool(check())


def print_content(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print data that another program may read, such as an answer or a config, to `stream` (default: standard output).

    It is escaped for a terminal only: a file or a pipe gets exactly the text.
    """
    out = sys.stdout if stream is None else stream
    _write(printable(text) if is_terminal(out) else text, out, end)


def print_coloured(text: str) -> None:
    """Print a text to standard output. Codes for colour and bold stay, other control characters are escaped."""
    _write("".join(part if COLOUR.fullmatch(part) else make_safe(part) for part in COLOUR.split(text)), sys.stdout)


def make_safe(text: str) -> str:
    """Return the text without secrets of addresses, and `printable`: for a progress bar, which prints by itself."""
    return printable(hide_secrets(text))


def printable(text: str) -> str:
    """Return the text with control characters as escape sequences, except line breaks and tabs: also C1 controls, lone surrogates, and
    format characters such as those that reverse the order of a text."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print_diagnostic("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def _print_traceback_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        print_diagnostic(f"in thread {failed.thread.name if failed.thread else None}:")
        _print_traceback(failed.exc_type, failed.exc_value, failed.exc_traceback)


def _print_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    text = warnings.formatwarning(message, category, filename, lineno, line).rstrip("\n")
    print_diagnostic(text) if file is None else _write(make_safe(text), file)


def _escape(character: str) -> str:
    harmless = character.isprintable() or character in "\n\t" or character in JOINERS or unicodedata.category(character) == "Zs"
    return character if harmless else character.encode("unicode_escape").decode()


def _write(text: str, stream: TextIO, end: str = "\n") -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, file=stream, flush=True)
