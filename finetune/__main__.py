"""python -m finetune VERB …, or finetune VERB …: picks the verb and imports only it."""

from __future__ import annotations

import importlib
import sys

VERBS = {
    "train": "fine-tune a model (usually through `accelerate launch finetune/train.py`)",
    "ray-train": "the same on the workers of a Ray cluster, which starts them again after a failure",
    "plan": "show a run before it is started: settings, memory, strategy, launch file, what would fail; its first batch",
    "export": "turn a checkpoint into a folder that the model's own package loads",
    "generate": "speak, or write, with an exported folder",
    "chat": "converse with an exported folder",
    "eval-voice": "say how good a voice is: understood, alike, at its pace; and whether training helped",
    "serve": "a page and an API of exported folders, for browsers and other programs",
    "check": "read every checkpoint of a run and say which are whole",
    "where": "print where the installed recipes and launch files lie",
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: finetune VERB …\n\n" + "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items()))
        print("\n`finetune VERB --help` says more.")
        return 0
    if argv[0] not in VERBS:
        print(f"error: unknown verb {argv[0]!r}; verbs are {', '.join(VERBS)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"finetune.{argv[0].replace('-', '_')}")
    return int(module.main(argv[1:]))


def console() -> int:
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(console())
