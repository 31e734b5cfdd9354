"""Where the assistant speaks: blocks against transformers' own tracking, and every way in which a template can be refused."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.errors import UserError
from recipes.language.assistant_spans import Turn, find, marks_blocks
from recipes.language.chat_template import Chat
from recipes.language.token_offsets import turn_ends
from tests.recipes.llm_sft.families import template, tokenizer

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "I am a machine."},
    {"role": "user", "content": "Good day."},
    {"role": "assistant", "content": "And to you."},
]


def turns(family: str, jinja: str, messages: list[dict[str, Any]] = CHAT, last: bool = False) -> list[str]:
    chat = Chat(messages, None, tokenizer(family), jinja)
    text = chat.written()
    found = find(chat, text, chat.answers[-1:] if last else chat.answers, turn_ends(tokenizer(family)))
    return [text[turn.start : turn.end] for turn in found]


def transformers_blocks(of: Any, jinja: str, messages: list[dict[str, Any]] = CHAT) -> list[str]:
    told = of.apply_chat_template(messages, chat_template=jinja, return_dict=True, return_assistant_tokens_mask=True, tokenize=True)
    runs = "".join(map(str, told["assistant_masks"])).replace("01", "0 1").replace("10", "1 0").split()
    places = [sum(map(len, runs[:number])) for number in range(len(runs))]
    return [of.decode(told["input_ids"][at : at + len(run)]) for at, run in zip(places, runs, strict=True) if "1" in run]


def test_blocks_are_those_of_transformers_to_the_end_of_the_turn() -> None:
    theirs = transformers_blocks(tokenizer("generation"), template("generation"))
    assert theirs == ["I am a machine.<|im_end|>\n", "And to you.<|im_end|>\n"]
    assert turns("generation", template("generation")) == [turn.rstrip("\n") for turn in theirs]


def test_blocks_in_a_macro_which_transformers_misplaces() -> None:
    jinja, thoughtful = template("generation_unended"), [CHAT[0], {**CHAT[1], "reasoning_content": "hm"}]
    assert transformers_blocks(tokenizer("generation_unended"), jinja, thoughtful) != ["<think>hm</think>I am a machine."]
    assert turns("generation_unended", jinja, thoughtful) == ["<think>hm</think>I am a machine.</s>"], "two blocks that touch are one"


def test_a_chat_that_the_assistant_begins() -> None:
    """transformers 4.57 tracks nothing until something is written."""
    assert turns("generation_unended", template("generation_unended"), CHAT[1:]) == ["I am a machine.</s>", "And to you.</s>"]
    assert turns("chatml", template("chatml"), CHAT[1:]) == ["I am a machine.<|im_end|>", "And to you.<|im_end|>"]
    with pytest.raises(UserError, match=r"messages\[0\]: the 0 messages up to there cannot stand alone \(.*has no element 0"):
        turns("qwen3", template("qwen3"), CHAT[1:])


@pytest.mark.parametrize("spaces", ["{%- generation -%}", "{%+ generation %}", "{% generation %}\n", "  {%generation%}\n\n  "])
def test_marks_leave_white_space_as_it_was(spaces: str) -> None:
    jinja = (
        "{% for m in messages %}\n{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}\n"
        + spaces
        + "{{ m.content }}<|im_end|>\n  {% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    found = turns("chatml", jinja)
    assert [turn.strip() for turn in found] == ["I am a machine.<|im_end|>", "And to you.<|im_end|>"]


def test_a_comment_is_no_block() -> None:
    assert not marks_blocks("{# without {% generation %} #}{{ messages }}") and marks_blocks("{#- #}{%- generation -%}")


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        (
            "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>{% generation %}{% endgeneration %}",
            "2 turns in this row, and they mark 4",
        ),
        ("{% filter upper %}{% generation %}{{ m.content | lower }}{% endgeneration %}{% endfilter %}<|im_end|>", None),
        ("{% set x %}{% generation %} {{ m.content }} {% endgeneration %}{% endset %}{{ x | trim }}<|im_end|>", "changed afterwards"),
        ("{% generation %}{% generation %}{{ m.content }}{% endgeneration %}{% endgeneration %}<|im_end|>", "within each other"),
        ("{% generation %}{{ m.content }}{% endgeneration %}", "no end-of-turn token of this tokenizer after"),
        (
            "{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>' if loop.last else '!' }}",
            "ends with '<|im_end|>' when nothing",
        ),
    ],
)
def test_blocks_that_cannot_be_relied_on(inside: str, told: str | None) -> None:
    jinja = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
        + inside
        + "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    )
    if told is None:  # marks are not letters, and pass through
        assert turns("chatml", jinja) == ["I AM A MACHINE.<|im_end|>", "AND TO YOU.<|im_end|>"]
    else:
        with pytest.raises(UserError, match=f"generation %}} blocks cannot be relied on: .*{told}.*; mend the template"):
            turns("chatml", jinja)


@pytest.mark.parametrize(
    ("name", "told", "last"),
    [
        ("bad_history", r"messages\[1\]: the template rewrites what is past", False),
        ("bad_shortened", r"messages\[1\]: the template shows an earlier turn otherwise than it was said", True),
        ("bad_unended", r"messages\[1\]: the template writes no end-of-turn token of this tokenizer after 'I am a machine.'", False),
        ("bad_prompt", r"messages\[1\]: the template rewrites what is past: generation would have been given 'bot", False),
    ],
)
def test_what_cannot_be_proven_is_refused(name: str, told: str, last: bool) -> None:
    with pytest.raises(UserError, match=f"{told}.*Give a template that has .% generation %") as refusal:
        turns("chatml", template(name))
    assert ("options.supervise: last" in str(refusal.value)) == last, "only where that can be proven"
    if last:
        assert turns("chatml", template(name), last=True) == ["And to you.<|im_end|>"]


def test_a_prompt_that_begins_the_turn_otherwise() -> None:
    with pytest.raises(UserError, match="the template rewrites what is past: generation would have been given '<think>"):
        turns("qwen3", template("qwen3_thinking"))
    assert turns("qwen3", template("qwen3_thinking"), last=True) == ["\n</think>\n\nAnd to you.<|im_end|>"]
    jinja = template("chatml") + "{% if not add_generation_prompt and messages | length == 2 %}{{ '!' }}{% endif %}"
    with pytest.raises(UserError, match="no end-of-turn token"):
        turns("chatml", jinja, CHAT[:2])


def test_a_last_turn_that_begins_otherwise_than_an_earlier_one() -> None:
    jinja = template("chatml").replace("message.role +", "('bot' if loop.last and message.role == 'assistant' else message.role) +")
    assert jinja != template("chatml")
    with pytest.raises(UserError, match="prompt for generation is not how it begins the turn: 'assistant.*' where the chat has 'bot"):
        turns("chatml", jinja)


def test_text_that_holds_what_marks_are_made_of() -> None:
    odd = [CHAT[0], {"role": "assistant", "content": "\ue001I\ue000 am\ue002."}]
    assert turns("generation", template("generation"), odd) == ["\ue001I\ue000 am\ue002.<|im_end|>"]


def test_text_that_holds_the_end_of_a_turn_is_told_apart() -> None:
    """An answer that names the token is one turn still; and where the template rewrites it, it is refused."""
    named = [CHAT[0], {"role": "assistant", "content": "It is <|im_end|>, I think."}, *CHAT[2:]]
    assert turns("chatml", template("chatml"), named)[0] == "It is <|im_end|>, I think.<|im_end|>"
    with pytest.raises(UserError, match="shows an earlier turn otherwise"):
        turns("qwen3", template("qwen3"), named)


def test_a_turn_is_a_place() -> None:
    chat = Chat(CHAT, None, tokenizer("chatml"), template("chatml"))
    [turn] = find(chat, chat.written(), [1], turn_ends(tokenizer("chatml")))
    assert turn == Turn(len(chat.written(1, prompt=True)), len(chat.written(2)) - 1)
