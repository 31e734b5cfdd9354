"""Command line for datasets (`python -m data_prep VERB …` or `data_prep VERB …`): imports only the module of the given verb. `overtone` has
these verbs too."""

from __future__ import annotations

import importlib
import sys

from overtone.finetune.errors import run_program
from overtone.finetune.verb_dispatch import dispatch_verb

VERBS = {
    "voice": "turn recordings into clips with transcripts (train.jsonl, val.jsonl, rejects.jsonl)",
    "codes": "encode the clips with the speech tokenizer; codes are added to the same files",
    "text": "turn conversations into chat rows (train.jsonl, val.jsonl, rejects.jsonl)",
    "images": "turn labelled images into rows for a classifier (train.jsonl, val.jsonl, rejects.jsonl, report.html)",
    "report": "write an HTML report about a dataset of a voice or of chats (report.html)",
    "review": "serve a page to listen to clips, correct texts, keep and reject (review.jsonl)",
    "check": "check every line and every clip of a voice dataset, also of one that another program made",
    "export": "export a voice dataset as LJSpeech, as an AudioFolder, or for the official Qwen3-TTS script",
}

OTHER_NAMES = {
    **dict.fromkeys(("transcribe", "segment", "split", "audio", "recordings", "align"), "voice"),
    **dict.fromkeys(("encode", "tokenize", "tokens", "codec"), "codes"),
    **dict.fromkeys(("chats", "chat", "convert", "jsonl", "conversations"), "text"),
    **dict.fromkeys(("edit", "correct", "label", "listen"), "review"),
    **dict.fromkeys(("validate", "verify"), "check"),
    **dict.fromkeys(("stats", "summary", "show"), "report"),
    **{verb: f"`overtone {verb}`" for verb in ("train", "plan", "generate", "serve", "eval-voice", "check-dataset", "export-dataset")},
}
"""Name of a verb in other tools → the verb that does the same here."""


def main(argv: list[str]) -> int:
    """Run the verb that `argv` names and return its exit code; 2 for an unknown verb."""
    return dispatch_verb("data_prep", {"Prepare data": VERBS}, OTHER_NAMES, run_verb, argv)


def run_verb(verb: str, argv: list[str]) -> int:
    """Import and run a verb and return its exit code."""
    return int(importlib.import_module(f"overtone.data_prep.cli.{verb}").main(argv))  # noqa: TID251 - a verb from a fixed list


def console() -> int:
    """Run the installed command."""
    return run_program(main)


if __name__ == "__main__":
    sys.exit(console())
