"""Command line of a program with verbs: lists them, suggests one for an unknown word, or runs the given one. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from overtone.finetune.argument_parsing import suggest_word
from overtone.finetune.terminal import print_diagnostic, print_line
from overtone.version import __version__


def dispatch_verb(
    program: str,
    groups: Mapping[str, Mapping[str, str]],
    other_names: Mapping[str, str],
    run_verb: Callable[[str, list[str]], int],
    argv: list[str],
) -> int:
    """Run the verb that `argv` starts with, and return its exit code; 2 for an unknown verb, which is reported with a suggestion.

    `groups`: heading → verb → its description, in the order of the list. `other_names`: what other tools call a verb → the verb here.
    """
    verbs = flatten_groups(groups)
    if not argv or argv[0] in ("-h", "--help"):
        print_line(f"usage: {program} VERB …")
        width = max(map(len, verbs))
        for heading, group in groups.items():
            print_line("\n".join(["", heading, *(f"  {verb:<{width}}  {text}" for verb, text in group.items())]))
        print_line(f"\n`{program} VERB --help` describes a verb, `{program} --version` prints the version.")
        return 0
    if argv[0] == "--version":
        print_line(f"overtone {__version__}")
        return 0
    if argv[0] not in verbs:
        known = other_names.get(argv[0].lower())
        hint = suggest_word(argv[0], verbs, "verbs") if known is None else f"this is {known}"
        print_diagnostic(f"error: unknown verb {argv[0]!r}; {hint}")
        return 2
    return run_verb(argv[0], argv[1:])


def flatten_groups(groups: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Verb → description, of all groups."""
    return {verb: text for group in groups.values() for verb, text in group.items()}
