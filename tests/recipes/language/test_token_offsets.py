"""Tokens and their places; and the boundary between what is given and what is learned, on tokenizers that join across it."""

from __future__ import annotations

import pytest

from finetune.errors import UserError
from recipes.language.assistant_spans import Turn
from recipes.language.token_offsets import Cut, added_ids, continued, ids_of, turn_ends
from tests.recipes.llm_sft.families import spaced, tokenizer


def test_tokens_of_a_turn() -> None:
    of = tokenizer("chatml")
    text = "<|im_start|>user\nÆ漢<|im_end|>\n<|im_start|>assistant\nCold.<|im_end|>\n"
    cut = Cut.of(text, of)
    start, end = text.index("Cold"), text.rindex("<|im_end|>") + len("<|im_end|>")
    tokens = cut.tokens_of(Turn(start, end))
    assert of.decode(cut.ids[tokens.start : tokens.stop]) == "Cold.<|im_end|>"
    assert of.decode(cut.ids[: tokens.start]) == text[:start] and cut.ids == ids_of(text, of)
    whole = cut.tokens_of(Turn(0, len(text)))
    assert whole == range(len(cut.ids))


def test_an_answer_that_is_joined_to_its_prompt_is_refused() -> None:
    of = tokenizer("chatml")
    text = "<|im_start|>assistant\n\nCold.<|im_end|>"
    with pytest.raises(UserError, match=r"joins the end of the prompt 'assistant\\n' with the beginning of the answer '\\nCold"):
        Cut.of(text, of).tokens_of(Turn(text.index("\nCold"), len(text)))


def test_joined_otherwise_before_the_boundary() -> None:
    """The boundary may fall between two tokens, and those before it may yet not be what the prompt alone is cut into."""
    of = tokenizer("chatml")
    text = "the weather"
    whole = Cut.of(text, of)
    for place in range(1, len(text)):
        honest = whole.ids[: len(ids_of(text[:place], of))] == ids_of(text[:place], of)
        if honest:
            assert whole.tokens_of(Turn(place, len(text))).start == len(ids_of(text[:place], of))
        else:
            with pytest.raises(UserError, match="the tokenizer joins"):
                whole.tokens_of(Turn(place, len(text)))


def test_completion_after_prompt() -> None:
    of = tokenizer("chatml")
    ids, start = continued("What is the weather?", " It is cold.", of)
    assert of.decode(ids[:start]) == "What is the weather?" and of.decode(ids[start:]) == " It is cold.<|im_end|>"
    assert ids == ids_of("What is the weather? It is cold.<|im_end|>", of)
    assert continued("What is the weather?", " It is cold.<|im_end|>", of) == (ids, start), "an end that is there is not doubled"
    assert continued("", "Cold.", of) == (ids_of("Cold.<|im_end|>", of), 0)


def test_a_prompt_is_cut_as_generation_cuts_it() -> None:
    of = tokenizer("chatml")
    ids, start = continued("The weather in ", "Oslo is cold.", of)
    assert ids[:start] == ids_of("The weather in ", of) and of.decode(ids[start:]) == "Oslo is cold.<|im_end|>"
    assert ids != ids_of("The weather in Oslo is cold.<|im_end|>", of), "where ' Oslo' is joined, and generation never stands before it"


def test_pieces_that_spell_something_else_are_refused() -> None:
    """A tokenizer that puts a space before every text would put one into the middle."""
    ids, start = continued("What is the weather?", " It is cold.", spaced())
    assert ids[0] == spaced().bos_token_id and spaced().decode(ids[start:]).strip() == "It is cold.</s>"
    with pytest.raises(UserError, match="joins the end of the prompt 'eather in ' .*move the white space"):
        continued("The weather in ", "Rome is warm.", spaced())


@pytest.mark.parametrize("family", ["llama3", "gemma2", "mistral", "chatml"])
def test_the_beginning_of_text_as_the_tokenizer_puts_it(family: str) -> None:
    of = tokenizer(family)
    ids, _ = continued("Good day.", " And to you.", of)
    assert ids[:-1] == of("Good day. And to you.")["input_ids"]
    if of.bos_token:
        again, _ = continued(f"{of.bos_token}Good day.", " And to you.", of)
        assert again == ids


def test_no_end_of_text() -> None:
    of = tokenizer("generation")
    kept, of.eos_token = of.eos_token, None
    try:
        with pytest.raises(UserError, match="has no end-of-text token"):
            continued("Good day.", " And to you.", of)
        assert "<|im_start|>" in turn_ends(of)
    finally:
        of.eos_token = kept


def test_which_tokens_can_end_a_turn() -> None:
    of = tokenizer("qwen3")
    assert turn_ends(of) == {"<|im_start|>", "<|im_end|>"} and len(added_ids(of)) == 6, "</think> ends no turn"


def test_the_tokens_of_a_templates_text_have_no_second_beginning() -> None:
    of = tokenizer("llama3")
    assert Cut.of("<|begin_of_text|>Cold.", of).ids == ids_of("<|begin_of_text|>Cold.", of)
    assert ids_of("<|begin_of_text|>Cold.", of).count(of.bos_token_id) == 1
