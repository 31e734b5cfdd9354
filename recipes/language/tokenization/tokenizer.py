"""Loads the base's tokenizer, with the chat template to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.model_security import admit
from overtone.finetune.storage.strict_json import first_line
from overtone.recipes.language.modeling.causal_model import causal_language_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(base: Path, chat_template: Path | None) -> PreTrainedTokenizerBase:
    """Return the base's tokenizer, with the chat template in that file if one is given.

    Raises `UserError` for a tokenizer that cannot be loaded, or that cannot report the place of its tokens.
    """
    from transformers import AutoTokenizer  # takes seconds, and `--help` imports this module

    with admit(base, causal_language_model()) as clean:
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(clean, trust_remote_code=False)
        except Exception as error:  # the tokenizers package raises plain Exception
            raise UserError(
                f"{base}: its tokenizer cannot be loaded ({first_line(error)}); the model's own code is never run, so the folder "
                "needs a tokenizer.json that transformers can read without it"
            ) from error
    if not tokenizer.is_fast:
        raise UserError(f"{base}: its tokenizer has no fast version (tokenizer.json), which is needed to locate tokens in the text")
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, embeddings: int, base: Path) -> None:
    """Raises `UserError` if the tokenizer can produce a token for which the model, with so many embeddings, has none."""
    if len(tokenizer) > embeddings:
        raise UserError(
            f"{base}: the tokenizer has {len(tokenizer):,} tokens and the model {embeddings:,} embeddings; the folder mixes files of two "
            "models, or tokens were added without resizing the model: use the tokenizer that was published with the weights"
        )


def read_template(path: Path) -> str:
    """Return a chat template's text. Raises `UserError`."""
    try:
        return input_files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"options.chat_template: {path} cannot be read ({error})") from None
