"""Finds the values of a model's settings files that a library could open as a file or a folder outside of the model. They reach no library.

The keys of tokenizer_config.json and special_tokens_map.json become arguments of the tokenizer's class, and any of them may be a file for
some class: `vocab_file`, `emoji_file`, `source_spm`, the `model_file` inside `sp_model_kwargs`, or all of `init_inputs`. So text is kept
only under keys that are known to hold tokens, templates or words (a token "/" is legitimate, and so is a path in a chat template), and
nothing is kept under a key of files, not even a number: `open(0)` reads standard input. The tokenizer's files are found in the folder by
their names.

No library is known to open the values of the other settings files, apart from the keys that are dropped by name. There, text in the form of
a path or an address is dropped. A single word can be the name of a file in the current folder: if there is such a file, and the key is not
one of words, the model is refused, since dropping the word could change the model. (A test tries all keys of the installed transformers.)
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from pydantic import JsonValue

TOKENIZER_SETTINGS = frozenset({"tokenizer_config.json", "special_tokens_map.json"})
FILE_KEYS = re.compile(r"(\w+_)?(files?|paths?|dirs?|folders?|spm|vocab|merges|inputs|object)|gguf\w*")
"""Keys of tokenizers for files, folders, and arguments without a name."""
TEXT_KEYS = re.compile(
    r"(\w+_)?tokens?(_\w+)?|(\w+_)?template|response_schema|never_split|wordpieces_prefix|\w+_char|id2lang|langs|prefix|suffix"
)
"""Keys of tokenizers for tokens and other text, which only tokenize and render."""
WORD_KEYS = re.compile(
    r"errors|backend|legacy|(\w+_)?(lang|language|language_codes|class|task|type|side|strategy|padding|truncation)|model_input_names"
    r"|phonemizer_backend|transformers_version"
)
"""Keys of tokenizers for names of modes, languages and classes."""
WORD = re.compile(r"[\w .+-]*")
TEXTS = re.compile(r"id2label|label2id|stop_strings|task_specific_params|(\w+_)?(tokens?|template)")
"""Keys of the other files for text that people read or models get."""
WORDS = re.compile(
    r"(\w+_)?(types?|act|activation|fn|func|function|class|method|mode|dtype|version|architectures|names|features|implementation"
    r"|norm|language|side|policy|strategy|reduction|loss|device|format|task)"
)
"""Keys of the other files for one of a few words: `model_type: llama` stays as it is beside a folder named llama."""
NAMES_OF_ITSELF = frozenset({"_name_or_path", "name_or_path"})
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ADDRESS = re.compile(r"(?!re:)[A-Za-z][\w.+-]*:")
"""Beginning of an address, also of one without slashes, such as timm's `local-dir:`. `re:` marks patterns of module names."""


def could_be_path(name: str, key: str, value: JsonValue) -> bool:
    """Return whether the value of a key in the settings file `name`, at any depth, must not reach a library.

    Objects inside of the value are examined with their own keys, but in a tokenizer's settings also as a part of it. Raises `UserError` for
    a word whose meaning cannot be decided.
    """
    if name in TOKENIZER_SETTINGS:
        return _could_be_tokenizer_file(key, value)
    texts = _list_texts(value, in_objects=False)
    if key in NAMES_OF_ITSELF:
        return any(os.path.lexists(text) or not (HUB_NAME.fullmatch(text) or WORD.fullmatch(text)) for text in texts)
    if any(map(has_form_of_path, texts)):
        return True
    if WORDS.fullmatch(key) is None and (word := next((text for text in texts if text and os.path.lexists(text)), None)) is not None:
        raise UserError(
            f"{name}: {key}: {word!r:.80} may be a setting, or the file of that name in the current folder; start the command in another "
            "folder"
        )
    return False


def holds_text(name: str, key: str) -> bool:
    """Return whether everything below a key of a settings file is text, which no library opens."""
    return (TEXT_KEYS if name in TOKENIZER_SETTINGS else TEXTS).fullmatch(key) is not None and not is_file_key(name, key)


def is_file_key(name: str, key: str) -> bool:
    """Return whether a key of a tokenizer's settings is one of files."""
    return name in TOKENIZER_SETTINGS and FILE_KEYS.fullmatch(key) is not None


def has_form_of_path(text: str) -> bool:
    """Return whether text is not a single word: an absolute or a relative path, a path at home, an address."""
    return "/" in text or "\0" in text or text in (".", "..") or text.startswith("~") or ADDRESS.match(text) is not None


def _could_be_tokenizer_file(key: str, value: JsonValue) -> bool:
    if FILE_KEYS.fullmatch(key):
        return True
    texts = _list_texts(value, in_objects=True)
    return bool(texts) and not (WORD_KEYS.fullmatch(key) and all(map(WORD.fullmatch, texts)))


def _list_texts(value: JsonValue, in_objects: bool) -> list[str]:
    """A string, or the strings in lists at any depth, and if `in_objects` also those in objects."""
    if isinstance(value, dict):
        value = list(value.values()) if in_objects else []
    if isinstance(value, list):
        return [text for inner in value for text in _list_texts(inner, in_objects)]
    return [value] if isinstance(value, str) else []
