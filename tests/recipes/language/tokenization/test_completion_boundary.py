"""Tests of `completion_boundary`: places of tokens, and tokenizers that merge across the end of a prompt."""

from __future__ import annotations

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.assistant_spans import TurnSpan
from overtone.recipes.language.tokenization.completion_boundary import (
    TokenizedText,
    added_token_ids,
    encode_text,
    find_end_tokens,
    tokenize_completion,
)
from tests.recipes.llm_sft.families import spaced, tokenizer


def test_the_tokens_of_a_turn_are_found() -> None:
    of = tokenizer("chatml")
    text = "<|im_start|>user\nÆ漢<|im_end|>\n<|im_start|>assistant\nCold.<|im_end|>\n"
    tokenized = TokenizedText.of(text, of)
    start, end = text.index("Cold"), text.rindex("<|im_end|>") + len("<|im_end|>")
    tokens = tokenized.find_tokens(TurnSpan(start, end))
    assert of.decode(tokenized.ids[tokens.start : tokens.stop]) == "Cold.<|im_end|>"
    assert of.decode(tokenized.ids[: tokens.start]) == text[:start] and tokenized.ids == encode_text(text, of)
    whole = tokenized.find_tokens(TurnSpan(0, len(text)))
    assert whole == range(len(tokenized.ids))


def test_an_answer_that_is_merged_with_its_prompt_is_refused() -> None:
    of = tokenizer("chatml")
    text = "<|im_start|>assistant\n\nCold.<|im_end|>"
    with pytest.raises(UserError, match=r"merges the end of the prompt 'assistant\\n' with the beginning of the answer '\\nCold"):
        TokenizedText.of(text, of).find_tokens(TurnSpan(text.index("\nCold"), len(text)))


def test_a_prompt_that_has_other_tokens_alone_is_refused() -> None:
    """The boundary can fall between two tokens while the tokens before it are not those of the prompt alone."""
    of = tokenizer("chatml")
    text = "the weather"
    whole = TokenizedText.of(text, of)
    for place in range(1, len(text)):
        equal = whole.ids[: len(encode_text(text[:place], of))] == encode_text(text[:place], of)
        if equal:
            assert whole.find_tokens(TurnSpan(place, len(text))).start == len(encode_text(text[:place], of))
        else:
            with pytest.raises(UserError, match="the tokenizer merges"):
                whole.find_tokens(TurnSpan(place, len(text)))


def test_a_completion_is_tokenized_after_its_prompt_with_an_end_of_text() -> None:
    of = tokenizer("chatml")
    ids, start = tokenize_completion("What is the weather?", " It is cold.", of)
    assert of.decode(ids[:start]) == "What is the weather?" and of.decode(ids[start:]) == " It is cold.<|im_end|>"
    assert ids == encode_text("What is the weather? It is cold.<|im_end|>", of)
    assert tokenize_completion("What is the weather?", " It is cold.<|im_end|>", of) == (ids, start), (
        "an end of text in the row is not doubled"
    )
    assert tokenize_completion("", "Cold.", of) == (encode_text("Cold.<|im_end|>", of), 0)


def test_a_prompt_has_the_tokens_that_generation_gives_it() -> None:
    of = tokenizer("chatml")
    ids, start = tokenize_completion("The weather in ", "Oslo is cold.", of)
    assert ids[:start] == encode_text("The weather in ", of) and of.decode(ids[start:]) == "Oslo is cold.<|im_end|>"
    assert ids != encode_text("The weather in Oslo is cold.<|im_end|>", of), "which has the token ' Oslo', before which generation never is"


def test_a_prompt_and_completion_that_decode_to_another_text_are_refused() -> None:
    """A tokenizer that adds a space before every text would add one in the middle."""
    ids, start = tokenize_completion("What is the weather?", " It is cold.", spaced())
    assert ids[0] == spaced().bos_token_id and spaced().decode(ids[start:]).strip() == "It is cold.</s>"
    with pytest.raises(UserError, match="merges the end of the prompt 'eather in ' .*move the white space"):
        tokenize_completion("The weather in ", "Rome is warm.", spaced())


@pytest.mark.parametrize("family", ["llama3", "gemma2", "mistral", "chatml"])
def test_the_beginning_of_text_is_added_as_the_tokenizer_does(family: str) -> None:
    of = tokenizer(family)
    ids, _ = tokenize_completion("Good day.", " And to you.", of)
    assert ids[:-1] == of("Good day. And to you.")["input_ids"]
    if of.bos_token:
        again, _ = tokenize_completion(f"{of.bos_token}Good day.", " And to you.", of)
        assert again == ids


def test_a_tokenizer_without_an_end_of_text_is_refused() -> None:
    of = tokenizer("generation")
    kept, of.eos_token = of.eos_token, None
    try:
        with pytest.raises(UserError, match="has no end-of-text token"):
            tokenize_completion("Good day.", " And to you.", of)
        assert "<|im_start|>" in find_end_tokens(of)
    finally:
        of.eos_token = kept


def test_special_tokens_can_end_a_turn_and_other_added_ones_cannot() -> None:
    of = tokenizer("qwen3")
    assert find_end_tokens(of) == {"<|im_start|>", "<|im_end|>"} and len(added_token_ids(of)) == 6, "</think> ends no turn"


def test_the_tokens_of_a_templates_text_have_no_second_beginning() -> None:
    of = tokenizer("llama3")
    assert TokenizedText.of("<|begin_of_text|>Cold.", of).ids == encode_text("<|begin_of_text|>Cold.", of)
    assert encode_text("<|begin_of_text|>Cold.", of).count(of.bos_token_id) == 1
