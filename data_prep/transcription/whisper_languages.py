"""Whisper language codes, for both engines."""

from __future__ import annotations

from overtone.finetune.errors import UserError

WHISPER_OPTION = "--whisper"
"""The option that usually names a Whisper model; functions that may refuse one get the name of the option for their message."""


def find_whisper_code(language: str | None, multilingual: bool) -> str | None:
    """Return Whisper's code of a language given by its full name; None: detect it. Raises `UserError` for an unsupported language."""
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    if not multilingual:
        if language not in (None, "english"):
            raise UserError(f"--language {language}: this Whisper model is English-only; choose a multilingual model")
        return "en"
    if language is None or language in LANGUAGES:
        return language
    if language not in TO_LANGUAGE_CODE:
        raise UserError(f"--language {language}: not supported by Whisper; supported: {', '.join(sorted(TO_LANGUAGE_CODE))}")
    return TO_LANGUAGE_CODE[language]
