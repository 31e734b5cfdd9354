"""Tests of `assistant_spans`: blocks compared with transformers' own tracking, and each reason to refuse a
template."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.assistant_spans import TurnSpan, find_turns, has_generation_blocks
from overtone.recipes.language.tokenization.chat_template import Chat
from overtone.recipes.language.tokenization.completion_boundary import find_end_tokens
from tests.recipes.llm_sft.families import template, tokenizer

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "I am a machine."},
    {"role": "user", "content": "Good day."},
    {"role": "assistant", "content": "And to you."},
]


def find_texts(family: str, jinja: str, messages: list[dict[str, Any]] = CHAT, last: bool = False) -> list[str]:
    chat = Chat(messages, None, tokenizer(family), jinja)
    text = chat.render()
    found = find_turns(chat, text, chat.assistant_indices[-1:] if last else chat.assistant_indices, find_end_tokens(tokenizer(family)))
    return [text[turn.start : turn.end] for turn in found]


def transformers_blocks(of: Any, jinja: str, messages: list[dict[str, Any]] = CHAT) -> list[str]:
    encoding = of.apply_chat_template(messages, chat_template=jinja, return_dict=True, return_assistant_tokens_mask=True, tokenize=True)
    runs = "".join(map(str, encoding["assistant_masks"])).replace("01", "0 1").replace("10", "1 0").split()
    places = [sum(map(len, runs[:number])) for number in range(len(runs))]
    return [of.decode(encoding["input_ids"][at : at + len(run)]) for at, run in zip(places, runs, strict=True) if "1" in run]


def test_blocks_equal_those_of_transformers_up_to_the_end_of_turn_token() -> None:
    theirs = transformers_blocks(tokenizer("generation"), template("generation"))
    assert theirs == ["I am a machine.<|im_end|>\n", "And to you.<|im_end|>\n"]
    assert find_texts("generation", template("generation")) == [turn.rstrip("\n") for turn in theirs]


def test_blocks_in_a_macro_are_found_although_transformers_misplaces_them() -> None:
    jinja, thoughtful = template("generation_unended"), [CHAT[0], {**CHAT[1], "reasoning_content": "hm"}]
    assert transformers_blocks(tokenizer("generation_unended"), jinja, thoughtful) != ["<think>hm</think>I am a machine."]
    assert find_texts("generation_unended", jinja, thoughtful) == ["<think>hm</think>I am a machine.</s>"], "two adjacent blocks are joined"


def test_a_chat_can_begin_with_the_assistant() -> None:
    """transformers 4.57 loses a block at the beginning of the text."""
    assert find_texts("generation_unended", template("generation_unended"), CHAT[1:]) == ["I am a machine.</s>", "And to you.</s>"]
    assert find_texts("chatml", template("chatml"), CHAT[1:]) == ["I am a machine.<|im_end|>", "And to you.<|im_end|>"]
    with pytest.raises(
        UserError, match=r"messages\[0\]: the template does not accept the 0 messages before it without the rest \(.*has no element 0"
    ):
        find_texts("qwen3", template("qwen3"), CHAT[1:])


@pytest.mark.parametrize("spaces", ["{%- generation -%}", "{%+ generation %}", "{% generation %}\n", "  {%generation%}\n\n  "])
def test_marks_do_not_change_white_space(spaces: str) -> None:
    jinja = (
        "{% for m in messages %}\n{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}\n"
        + spaces
        + "{{ m.content }}<|im_end|>\n  {% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    found = find_texts("chatml", jinja)
    assert [turn.strip() for turn in found] == ["I am a machine.<|im_end|>", "And to you.<|im_end|>"]


def test_a_generation_tag_in_a_comment_is_ignored() -> None:
    assert not has_generation_blocks("{# without {% generation %} #}{{ messages }}") and has_generation_blocks("{#- #}{%- generation -%}")


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (
            "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>{% generation %}{% endgeneration %}",
            "2 turns in this row, but the blocks mark 4",
        ),
        ("{% filter upper %}{% generation %}{{ m.content | lower }}{% endgeneration %}{% endfilter %}<|im_end|>", None),
        ("{% set x %}{% generation %} {{ m.content }} {% endgeneration %}{% endset %}{{ x | trim }}<|im_end|>", "changed after the block"),
        ("{% generation %}{% generation %}{{ m.content }}{% endgeneration %}{% endgeneration %}<|im_end|>", "they are nested"),
        ("{% generation %}{{ m.content }}{% endgeneration %}", "no end-of-turn token of this tokenizer after"),
        (
            "{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>' if loop.last else '!' }}",
            "ends with '<|im_end|>' if it is the last message",
        ),
    ],
)
def test_unreliable_blocks_are_refused(inside: str, reason: str | None) -> None:
    jinja = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
        + inside
        + "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    )
    if reason is None:  # a filter for letters does not change marks
        assert find_texts("chatml", jinja) == ["I AM A MACHINE.<|im_end|>", "AND TO YOU.<|im_end|>"]
    else:
        with pytest.raises(UserError, match=f"generation %}} blocks cannot be used: .*{reason}.*; correct the template"):
            find_texts("chatml", jinja)


@pytest.mark.parametrize(
    ("name", "reason", "last"),
    [
        ("bad_history", r"messages\[1\]: the template rewrites earlier messages", False),
        ("bad_shortened", r"messages\[1\]: the template shows an earlier turn unlike it was generated", True),
        ("bad_unended", r"messages\[1\]: the template writes no end-of-turn token of this tokenizer after 'I am a machine.'", False),
        ("bad_prompt", r"messages\[1\]: the template rewrites earlier messages: generation would have been given 'bot", False),
    ],
)
def test_a_turn_that_cannot_be_proven_is_refused(name: str, reason: str, last: bool) -> None:
    with pytest.raises(UserError, match=f"{reason}.*Set options.chat_template to a template that has .% generation %") as refusal:
        find_texts("chatml", template(name))
    assert ("options.supervise: last" in str(refusal.value)) == last, "only if the last turn can be proven"
    if last:
        assert find_texts("chatml", template(name), last=True) == ["And to you.<|im_end|>"]


def test_a_generation_prompt_that_earlier_turns_do_not_begin_with_is_refused() -> None:
    with pytest.raises(UserError, match="the template rewrites earlier messages: generation would have been given '<think>"):
        find_texts("qwen3", template("qwen3_thinking"))
    assert find_texts("qwen3", template("qwen3_thinking"), last=True) == ["\n</think>\n\nAnd to you.<|im_end|>"]
    jinja = template("chatml") + "{% if not add_generation_prompt and messages | length == 2 %}{{ '!' }}{% endif %}"
    with pytest.raises(UserError, match="no end-of-turn token"):
        find_texts("chatml", jinja, CHAT[:2])


def test_a_last_turn_that_does_not_begin_with_the_generation_prompt_is_refused() -> None:
    jinja = template("chatml").replace("message.role +", "('bot' if loop.last and message.role == 'assistant' else message.role) +")
    assert jinja != template("chatml")
    with pytest.raises(UserError, match="generation prompt is not the beginning of the turn: 'assistant.*' where the chat has 'bot"):
        find_texts("chatml", jinja)


def test_text_may_contain_the_characters_of_the_marks() -> None:
    odd = [CHAT[0], {"role": "assistant", "content": "\ue001I\ue000 am\ue002."}]
    assert find_texts("generation", template("generation"), odd) == ["\ue001I\ue000 am\ue002.<|im_end|>"]


def test_an_answer_may_contain_the_end_of_turn_token() -> None:
    """It is still one turn. If the template shortens that turn, it is refused."""
    named = [CHAT[0], {"role": "assistant", "content": "It is <|im_end|>, I think."}, *CHAT[2:]]
    assert find_texts("chatml", template("chatml"), named)[0] == "It is <|im_end|>, I think.<|im_end|>"
    with pytest.raises(UserError, match="shows an earlier turn unlike it was generated"):
        find_texts("qwen3", template("qwen3"), named)


def test_a_span_covers_the_turn_and_its_end_token() -> None:
    chat = Chat(CHAT, None, tokenizer("chatml"), template("chatml"))
    [turn] = find_turns(chat, chat.render(), [1], find_end_tokens(tokenizer("chatml")))
    assert turn == TurnSpan(len(chat.render(1, add_generation_prompt=True)), len(chat.render(2)) - 1)
