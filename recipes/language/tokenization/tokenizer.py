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
    from pydantic import JsonValue
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

TOKENIZER = "tokenizer.json"
PARTS = ("normalizer", "pre_tokenizer", "model", "decoder")
"""Parts of a tokenizer that decide tokens and text. Its post-processor only adds special tokens."""
MODEL_FLAGS = ("byte_fallback", "fuse_unk", "ignore_merges")


def load_tokenizer(base: Path, chat_template: Path | None) -> PreTrainedTokenizerBase:
    """Return the base's tokenizer as its tokenizer.json describes it, with the chat template in that file if one is given.

    Raises `UserError` for a tokenizer that cannot be loaded, or that cannot report the place of its tokens.
    """
    tokenizer, stored = _load_stock(base)
    if not tokenizer.is_fast:
        raise UserError(f"{base}: its tokenizer has no fast version (tokenizer.json), which is needed to locate tokens in the text")
    if stored is not None:
        for name in PARTS:
            setattr(tokenizer.backend_tokenizer, name, getattr(stored, name))
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
    return tokenizer


def name_whole_class(base: Path, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the content of tokenizer_config.json with a class that takes all of tokenizer.json, if the base's own does not."""
    tokenizer, stored = _load_stock(base)
    if stored is None:
        return settings
    defaults = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}  # of the class
    return {**{name: token for name, token in defaults.items() if token}, **settings, "tokenizer_class": "PreTrainedTokenizerFast"}


def _load_stock(base: Path) -> tuple[PreTrainedTokenizerBase, Tokenizer | None]:
    """Return the tokenizer as transformers loads it, and the one of tokenizer.json if that has other parts: transformers 5 takes only the
    vocabulary from it for a class such as GPT2Tokenizer, so that a model which learned numbers digit by digit gets whole numbers."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # takes seconds, and `--help` imports this module

    with admit(base, causal_language_model()) as clean:
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(clean, trust_remote_code=False)
            is_complete = type(tokenizer) is PreTrainedTokenizerFast or not tokenizer.is_fast or not (clean / TOKENIZER).is_file()
            stored = None if is_complete else Tokenizer.from_file(str(clean / TOKENIZER))
        except Exception as error:  # the tokenizers package raises plain Exception
            raise UserError(
                f"{base}: its tokenizer cannot be loaded ({first_line(error)}); the model's own code is never run, so the folder "
                "needs a tokenizer.json that transformers can read without it"
            ) from error
    is_same = stored is None or _describe(stored) == _describe(tokenizer.backend_tokenizer)
    return tokenizer, None if is_same else stored


def _describe(tokenizer: Tokenizer) -> list[object]:
    """Return what decides tokens and text, without the vocabulary. A byte-level decoder has no settings; `trim_offsets` moves places."""
    model, decoder = tokenizer.model, tokenizer.decoder
    kinds, flags = [type(model).__name__, type(decoder).__name__], [getattr(model, name, None) for name in MODEL_FLAGS]
    parts = [tokenizer.normalizer, tokenizer.pre_tokenizer, None if kinds[1] == "ByteLevel" else decoder]
    return [*kinds, *flags, *(part and part.__getstate__().replace(b'"trim_offsets":true', b'"trim_offsets":false') for part in parts)]


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
