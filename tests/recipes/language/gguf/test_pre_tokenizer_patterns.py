"""Tests of `overtone.recipes.language.gguf.pre_tokenizer_patterns`: each family's tokenizer passes under its name, and under no other."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from overtone.recipes.language.gguf import pre_tokenizer_patterns
from overtone.recipes.language.gguf.pre_tokenizer_patterns import MARKED, PRE_TOKENIZERS, PROBES, divide, find_difference

REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUBLISHED = {
    "llama-bpe": rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",
    "qwen2": rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",
    "gpt-4o": CASED % (f"{SHORT}?", f"{SHORT}?", r"\p{N}{1,3}"),
    "tekken": CASED % ("", "", r"\p{N}"),
}
"""The patterns in the published tokenizer.json files of Llama 3, Qwen2, GPT-4o and Mistral Nemo. `gpt-2` has ByteLevel's own, and `smollm`
single digits before it."""


def make_tokenizer(name: str) -> Any:
    """A tokenizer with the family's pre-tokenizer, and a merge for everything that occurs in the probes."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in PUBLISHED)
    first = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}
    steps = first.get(name) if name in first else [pre_tokenizers.Split(Regex(PUBLISHED[name]), "isolated")]
    whole = Tokenizer(models.BPE(ignore_merges=PRE_TOKENIZERS[name].ignores_merges))
    # Trained on whole texts, so that tokens reach across the pieces of every pre-tokenizer, and a wrong one makes other tokens.
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.train_from_iterator(
        [*PROBES, MARKED] * 3, trainers.BpeTrainer(vocab_size=2000, min_frequency=2, show_progress=False, initial_alphabet=alphabet)
    )
    whole.pre_tokenizer = pre_tokenizers.Sequence([*(steps or []), byte_level])
    whole.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=whole)


@pytest.mark.parametrize("name", ["gpt-2", "smollm", *PUBLISHED])
def test_a_family_passes_under_its_name_alone(name: str) -> None:
    tokenizer = make_tokenizer(name)
    own = PRE_TOKENIZERS[name]
    assert {other for other in PRE_TOKENIZERS if find_difference(other, tokenizer) is None} == {
        other for other, known in PRE_TOKENIZERS.items() if known == own
    }


def test_words_with_marks_are_compared_where_llama_cpp_keeps_them_whole() -> None:
    """llama.cpp writes the patterns of GPT-4o and Mistral Nemo without `\\p{M}`."""
    assert {name for name, known in PRE_TOKENIZERS.items() if known.splits_marks} == {"tekken", "gpt-4o"}
    tokenizer = make_tokenizer("gpt-4o")
    trained = tokenizer.tokenize(MARKED)
    pieces = map(pre_tokenizer_patterns.encode_bytes, divide(MARKED, PRE_TOKENIZERS["gpt-4o"].patterns))
    there = [token.value for piece in pieces for token in tokenizer.backend_tokenizer.model.tokenize(piece)]
    assert trained != there


def test_a_name_that_was_not_compared_is_a_difference() -> None:
    tokenizer = make_tokenizer("gpt-2")
    assert "the pre-tokenizer 'viking', which was not compared with llama.cpp's" in str(find_difference("viking", tokenizer))
    assert find_difference(None, tokenizer) is not None and find_difference(["gpt-2"], tokenizer) is not None


def test_a_space_before_each_text_is_a_difference() -> None:
    tokenizer = make_tokenizer("gpt-2")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert "the pre-tokenizer gpt-2, with " in str(find_difference("gpt-2", tokenizer))


def test_each_pattern_divides_the_pieces_of_the_one_before() -> None:
    assert divide("ab12 c", (r"\p{N}", r" ?\p{L}+")) == ["ab", "1", "2", " c"]
    assert divide("", (r"\p{N}",)) == [] and divide("  a", (r"\s+(?!\S)",)) == [" ", " a"]


def test_pieces_are_encoded_byte_by_byte() -> None:
    assert pre_tokenizer_patterns.encode_bytes(" é\n") == "ĠÃ©Ċ"
