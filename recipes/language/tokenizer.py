"""The base's tokenizer, and the chat template that it is used with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.storage.model_security import admit


def load_tokenizer(base: Path, chat_template: Path | None) -> Any:
    """The base's tokenizer, with the chat template of the config if that has one. Raises `UserError` for one without places."""
    from transformers import AutoTokenizer

    from recipes.language.causal_model import language_model

    with admit(base, language_model()) as clean:
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(clean, trust_remote_code=False)
        except Exception as error:  # the tokenizers' own errors have no class of their own
            raise UserError(
                f"{base}: its tokenizer cannot be loaded ({str(error).splitlines()[0]}); a tokenizer that comes as code is never run, "
                "so a tokenizer.json that transformers reads by itself must be there"
            ) from error
    if not tokenizer.is_fast:
        raise UserError(f"{base}: its tokenizer has no fast form (tokenizer.json), without which no token's place in the text is known")
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
    return tokenizer


def check_words(tokenizer: Any, words: int, base: Path) -> None:
    """Raises `UserError` if the tokenizer can write a token for which a model of so many words has no embedding."""
    if len(tokenizer) > words:
        raise UserError(
            f"{base}: the tokenizer knows {len(tokenizer):,} tokens and the model {words:,}; the files of two models lie there, or tokens "
            "were added without enlarging the model: use the tokenizer that came with the weights"
        )


def read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"options.chat_template: {path} cannot be read ({error})") from None
