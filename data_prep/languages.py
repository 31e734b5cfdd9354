"""Whisper's codes of languages, whichever engine runs it."""

from __future__ import annotations

from finetune.errors import UserError


def code_of(language: str | None, multilingual: bool) -> str | None:
    """The code of a language given by its full name; None: to be detected. Raises `UserError` for one that Whisper does not know."""
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    if not multilingual:
        if language not in (None, "english"):
            raise UserError(f"--language {language}: these Whisper weights know English only; choose multilingual ones")
        return "en"
    if language is None or language in LANGUAGES:
        return language
    if language not in TO_LANGUAGE_CODE:
        raise UserError(f"--language {language}: Whisper does not know it; known: {', '.join(sorted(TO_LANGUAGE_CODE))}")
    return TO_LANGUAGE_CODE[language]
