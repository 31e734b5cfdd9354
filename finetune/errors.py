"""User-facing errors: `UserError`, which verbs print without a traceback, and their exit codes."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
from collections.abc import Callable

from overtone.finetune.addresses import hide_secrets
from overtone.finetune.terminal import print_diagnostic, protect_terminal


class UserError(Exception):
    """Invalid input or environment. The message names the thing, its value, the place and the next action.

    A verb prints it without a traceback and exits with code 2; any other exception is a bug and keeps its traceback. The message has no
    secrets of addresses: it is printed, logged, and saved in the run's folder.
    """

    def __init__(self, message: str) -> None:
        super().__init__(hide_secrets(message))


class ElsewhereError(UserError):
    """A `UserError` of another rank. This rank ends too, without printing it again."""


def run_program(main: Callable[[list[str]], int]) -> int:
    """Run `main` on the arguments of this process and return its exit code as `catch_user_errors` does, with tracebacks that are safe to
    print."""
    protect_terminal()
    return catch_user_errors(main)(sys.argv[1:])


def catch_user_errors(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """Decorate a function that runs a command line and returns its exit code: a `UserError` is printed to stderr and gives exit code 2,
    Ctrl-C gives 130, and a standard output that nobody reads any more (`… | head`) 141."""

    @functools.wraps(main)
    def run(argv: list[str]) -> int:
        try:
            try:
                return main(argv)
            finally:
                sys.stdout.flush()  # here and not when the interpreter ends, where a closed pipe would print a traceback
        except BrokenPipeError:
            if not _has_lost_reader():
                raise
            return 128 + signal.SIGPIPE
        except KeyboardInterrupt:
            print_diagnostic("interrupted")
            return 128 + signal.SIGINT
        except ElsewhereError:
            return 2
        except UserError as error:
            print_diagnostic(f"error: {error}")
            return 2

    return run


def _has_lost_reader() -> bool:
    """Return whether standard output is a pipe that nobody reads any more. If so, the rest of the output is dropped."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file
        return False
    waiting = select.poll()
    waiting.register(output, 0)
    lost = any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))
    if lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return lost


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `3,789 rows`, `2 batches`."""
    plural = "es" if noun.endswith(("tch", "s", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
