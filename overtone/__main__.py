"""Command line of everything (`overtone VERB …` or `python -m overtone VERB …`): the studio, and the verbs of data_prep and of
finetune, in the order of the work."""

from __future__ import annotations

import sys

from overtone.data_prep import __main__ as data_prep
from overtone.finetune import __main__ as finetune
from overtone.finetune.errors import run_program
from overtone.finetune.storage.folder_handles import name_paths
from overtone.finetune.verb_dispatch import dispatch_verb

RENAMED = {"check": "check-dataset", "export": "export-dataset"}
"""Verbs of data_prep whose names are those of other verbs in finetune → their names here."""
DATASET_VERBS = {RENAMED.get(verb, verb): verb for verb in data_prep.VERBS}
"""Verb → its name in data_prep."""
STUDIO = "studio"
"""The one verb that belongs to neither program."""
GROUPS = {
    "In the browser": {STUDIO: "serve one page for the whole way: data, training, choice and use of a model"},
    "Prepare data": {name: data_prep.VERBS[verb] for name, verb in DATASET_VERBS.items()},
    **finetune.GROUPS,
}
_OF_DATASETS = {word: RENAMED.get(verb, verb) for word, verb in data_prep.OTHER_NAMES.items()}
OTHER_NAMES = {
    word: ", or ".join(names[word] for names in (_OF_DATASETS, finetune.OTHER_NAMES) if word in names)
    for word in (*_OF_DATASETS, *finetune.OTHER_NAMES)
}
"""Name of a verb in other tools → the verb here; both if it is one of datasets and another one of runs."""


def main(argv: list[str]) -> int:
    """Run the verb that `argv` names and return its exit code; 2 for an unknown verb."""
    return dispatch_verb("overtone", GROUPS, OTHER_NAMES, run_verb, argv)


def run_verb(verb: str, argv: list[str]) -> int:
    """Run a verb of either program, or the studio, and return its exit code."""
    if verb == STUDIO:
        from overtone.studio.cli import studio

        name_paths(argv)
        return studio.main(argv)
    return data_prep.run_verb(DATASET_VERBS[verb], argv) if verb in DATASET_VERBS else finetune.run_verb(verb, argv)


def console() -> int:
    """Entry point of the installed command."""
    return run_program(main)


if __name__ == "__main__":
    sys.exit(console())
