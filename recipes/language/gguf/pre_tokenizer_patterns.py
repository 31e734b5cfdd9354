"""Patterns by which llama.cpp divides a text before it merges bytes, for each pre-tokenizer that an export may name, compared with the
trained one.

The converter chooses the name (`tokenizer.ggml.pre`) by a hash of one tokenized text. Here the trained tokenizer's division of other texts
is compared with that of llama.cpp's patterns for the name (src/llama-vocab.cpp, class llm_tokenizer_bpe).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import regex
from tokenizers import pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
UPPER, LOWER = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"
CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|{CASED_REST}"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"|{CASED_REST}"
)


class PreTokenizer(NamedTuple):
    """A pre-tokenizer as llama.cpp implements it."""

    patterns: tuple[str, ...]
    """Each divides the pieces of the one before: its matches, and the text between them, are the next pieces."""
    ignores_merges: bool = False
    """True if a piece that is a token is that token, whatever the merges say."""
    splits_marks: bool = False
    """True if llama.cpp divides words at combining marks, as in Hindi and Thai, where the published tokenizer does not."""


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer((GPT2,)),
    "phi-2": PreTokenizer((GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", GPT2)),
    "starcoder": PreTokenizer((r"\p{N}", GPT2)),
    "refact": PreTokenizer((r"\p{N}", GPT2)),
    "llama-bpe": PreTokenizer((LLAMA3,), ignores_merges=True),
    "falcon3": PreTokenizer((LLAMA3,), ignores_merges=True),
    "dbrx": PreTokenizer((LLAMA3,)),
    "smaug-bpe": PreTokenizer((LLAMA3,)),
    "qwen2": PreTokenizer((QWEN2,)),
    "deepseek-r1-qwen": PreTokenizer((QWEN2,)),
    "tekken": PreTokenizer((TEKKEN,), ignores_merges=True, splits_marks=True),
    "gpt-4o": PreTokenizer((GPT4O,), splits_marks=True),
}
ALPHABET = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PROBES = (
    "I've seen you: she'll say \"I'M HERE\", they'Re late, WE'D go.",
    "  two  spaces\tand a tab \n\nline breaks\r\n \r\n   end   ",
    "12 123 1234 12345.678 3,000,000 ½ ² ٣٤ x1y22",
    "foo(bar)[0] += baz_qux; // /path/to/file.py\n\t\treturn {'a': 1}",
    "Größe naïve ÉCOLE СССР Привет мир 我想吃苹果。 日本語 한국어 🙂🏽‍👩 …—",
    "camelCase XMLReader iPhone iOS17 ABCdef GHI's",
    "",
)
"""Texts on which the known pre-tokenizers differ, in Unicode's normal form C: llama.cpp does not normalize."""
MARKED = "हिन्दी ไทย"
"""As `PROBES`, with combining marks."""


def find_difference(name: object, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return what in the pre-tokenizer `name` of a file differs from a byte-level tokenizer of transformers; None if nothing does."""
    known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if known is None:
        return f"the pre-tokenizer {name!r}, which was not compared with llama.cpp's (known: {', '.join(PRE_TOKENIZERS)})"
    model = tokenizer.backend_tokenizer.model
    if bool(getattr(model, "ignore_merges", False)) != known.ignores_merges:
        return f"the pre-tokenizer {name}, by which llama.cpp treats whole pieces in another way (ignore_merges)"
    for text in (*PROBES, *([] if known.splits_marks else [MARKED])):
        trained = tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
        there = [token.value for piece in divide(text, known.patterns) for token in model.tokenize(encode_bytes(piece))]
        if trained != there:
            at = next((number for number, pair in enumerate(zip(trained, there)) if pair[0] != pair[1]), 0)
            return f"the pre-tokenizer {name}, with {there[at : at + 3]} where the trained one has {trained[at : at + 3]} (in {text!r})"
    return None


def encode_bytes(piece: str) -> str:
    """Return a piece in the alphabet of byte-level tokenizers, one character for each byte."""
    ((encoded, _),) = ALPHABET.pre_tokenize_str(piece)
    return encoded


def divide(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Return the pieces of a text."""
    pieces = [text] if text else []
    for pattern in patterns:
        pieces = [part for piece in pieces for part in _divide_once(piece, pattern)]
    return pieces


def _divide_once(text: str, pattern: str) -> list[str]:
    parts, end = [], 0
    for match in regex.finditer(pattern, text):
        parts += [text[end : match.start()], match.group()]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]
