"""Checks that a base numbers its tokens as openai-whisper does, whose tokenizer lays out the rows."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import read_object

from .sequence_layout import RecognizerProcessor, load_tokenizer

TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.json"


def check_vocabulary(base: Path, processor: RecognizerProcessor) -> None:
    """Raises `UserError` if a tokenizer.json or vocab.json of the base gives a token another number."""
    expected = list_tokens(processor)
    for name in (TOKENIZER, VOCABULARY):
        if not (base / name).is_file():
            continue
        content = read_object(base / name)
        model = content if name == VOCABULARY else content.get("model")
        found = model.get("vocab") if name == TOKENIZER and isinstance(model, dict) else model
        if not isinstance(found, dict):
            raise UserError(f"{base / name} has no vocabulary; download the model again, or give another")
        differing = [token for token, number in expected.items() if found.get(token) != number]
        if differing:
            raise UserError(
                f"{base / name}: {len(differing):,} tokens have other numbers than in Whisper ({differing[0]!r} is "
                f"{found.get(differing[0])}, expected {expected[differing[0]]}); download the model again, or give another"
            )


def list_tokens(processor: RecognizerProcessor) -> dict[str, int]:
    """Token, as files of byte-level BPE write it → number, without the special ones."""
    letters = list_byte_letters()
    ranks = load_tokenizer(processor, "en", "transcribe").encoding._mergeable_ranks
    return {"".join(letters[byte] for byte in token): number for token, number in ranks.items() if token}


def list_byte_letters() -> list[str]:
    """For each byte the letter by which files of byte-level BPE write it: its own, or, if that is not printable, one above 255."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]
