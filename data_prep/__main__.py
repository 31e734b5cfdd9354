"""Command-line entry point, `python -m data_prep VERB …` or `data_prep VERB …`: imports only the module of the given verb."""

from __future__ import annotations

import importlib
import sys

from overtone.finetune.argument_parsing import suggest_word
from overtone.finetune.terminal import print_diagnostic, print_line, protect_terminal

VERBS = {
    "voice": "turn recordings into clips with transcripts (train.jsonl, val.jsonl, rejects.jsonl)",
    "codes": "encode the clips with the speech tokenizer; codes are added to the same files",
    "report": "write an HTML report about a dataset of a voice or of chats (report.html)",
    "review": "serve a page to listen to clips, correct texts, keep and reject (review.jsonl)",
    "check": "check every line and every clip of a voice dataset, also of one that another program made",
    "export": "export a voice dataset as LJSpeech, as an AudioFolder, or for the official Qwen3-TTS script",
    "images": "turn labelled images into rows for a classifier (train.jsonl, val.jsonl, rejects.jsonl, report.html)",
    "text": "turn conversations into chat rows (train.jsonl, val.jsonl, rejects.jsonl)",
}

OTHER_NAMES = {
    **dict.fromkeys(("transcribe", "segment", "split", "audio", "prepare", "recordings", "align"), "voice"),
    **dict.fromkeys(("encode", "tokenize", "tokens", "codec"), "codes"),
    **dict.fromkeys(("chats", "chat", "convert", "jsonl", "conversations"), "text"),
    **dict.fromkeys(("edit", "correct", "label", "listen"), "review"),
    **dict.fromkeys(("validate", "verify"), "check"),
    **dict.fromkeys(("stats", "summary", "show"), "report"),
    **dict.fromkeys(("train", "plan", "generate", "chat-with", "serve", "eval-voice"), "the command finetune"),
}
"""What other tools call a verb → the verb that does it here."""


def main(argv: list[str]) -> int:
    """Run the verb that `argv` names and return its exit code; 2 for an unknown verb."""
    if argv and argv[0] in VERBS:
        return importlib.import_module(f"overtone.data_prep.cli.{argv[0]}").main(argv[1:])
    help_requested = bool(argv) and argv[0] in ("-h", "--help")
    if argv and not help_requested:
        known = OTHER_NAMES.get(argv[0].lower())
        hint = suggest_word(argv[0], VERBS, "verbs") if known is None else f"this is {known}"
        print_diagnostic(f"error: unknown verb {argv[0]!r}; {hint}")
        return 2
    lines = ["usage: data_prep VERB …   (VERB --help for its options)", *(f"  {verb:<8}{text}" for verb, text in VERBS.items())]
    (print_line if help_requested else print_diagnostic)("\n".join(lines))
    return 0 if help_requested else 2


def console() -> None:
    """Entry point of the installed command."""
    protect_terminal()
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    console()
