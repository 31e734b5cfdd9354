"""`python -m data_prep VERB …` and the `data_prep` command: picks the verb and imports only that."""

from __future__ import annotations

import importlib
import sys

VERBS = {
    "voice": "recordings to clips with texts (train.jsonl, val.jsonl, rejects.jsonl)",
    "codes": "clips to the speech tokenizer's codes, into the same files",
    "report": "a page to look at and listen to a dataset (report.html)",
    "review": "a page to listen, to correct texts, to keep and to reject (review.jsonl)",
    "check": "is a voice dataset, ours or not, fit to train on? Every line and every clip",
    "export": "a voice dataset as LJSpeech, as an AudioFolder, or for the official Qwen3-TTS script",
    "text": "conversations to chats to train on (train.jsonl, val.jsonl, rejects.jsonl)",
}


def main(argv: list[str]) -> int:
    """Exit code of the verb that `argv` names."""
    if argv and argv[0] in VERBS:
        return importlib.import_module(f"data_prep.{argv[0]}").main(argv[1:])
    asked = bool(argv) and argv[0] in ("-h", "--help")
    lines = ["usage: data_prep VERB …   (VERB --help for its options)", *(f"  {verb:<8}{says}" for verb, says in VERBS.items())]
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def console() -> None:
    """The installed command."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    console()
