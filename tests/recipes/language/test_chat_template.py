"""A chat as text: the same on every day, whole or in part, and no part of it passed over."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.errors import UserError
from recipes.language.chat_template import TODAY, Chat, check_all_written, template_of
from tests.recipes.llm_sft.families import template, tokenizer

CHAT = [{"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "Cold."}]


def chat_of(family: str, messages: list[dict[str, Any]] = CHAT, tools: list[Any] | None = None) -> Chat:
    return Chat(messages, tools, tokenizer(family), template_of(tokenizer(family), tools))


def test_whole_in_part_and_with_the_prompt() -> None:
    chat = chat_of("chatml")
    assert chat.answers == [1]
    assert chat.written() == "<|im_start|>user\nOslo?<|im_end|>\n<|im_start|>assistant\nCold.<|im_end|>\n"
    assert chat.written(1, prompt=True) == "<|im_start|>user\nOslo?<|im_end|>\n<|im_start|>assistant\n"
    assert chat.written(0) == ""
    assert chat.written(template="{{ messages[1].content }}") == "Cold."


def test_the_clock_stands_still() -> None:
    assert f"Today Date: {TODAY:%d %b %Y}" in chat_of("llama3").written()
    other = tokenizer("chatml", "llama3")
    jinja = "  {{ strftime_now('%Y-%m-%d, %A %B %H:%M:%S') }}\n"
    other_chat = Chat(CHAT, None, other, template_of(_Templated(jinja), None))
    assert other_chat.written() == f"  {TODAY:%Y-%m-%d, %A %B} 00:00:00", "and the line that sets the clock leaves no trace"


class _Templated:
    def __init__(self, jinja: str) -> None:
        self._jinja = jinja

    def get_chat_template(self, _: None, tools: Any) -> str:
        return self._jinja


def test_a_template_for_tools_is_taken_for_tools() -> None:
    of = tokenizer("mistral", "chatml")
    kept, of.chat_template = of.chat_template, {"default": "plain", "tool_use": "with tools"}
    try:
        assert template_of(of, None) == "plain" and template_of(of, [{"name": "weather"}]) == "with tools"
    finally:
        of.chat_template = kept


def test_no_template() -> None:
    of = tokenizer("gemma2", "gemma2")
    kept, of.chat_template = of.chat_template, None
    try:
        with pytest.raises(UserError, match="has no chat template.*options.chat_template: FILE"):
            template_of(of, None)
    finally:
        of.chat_template = kept


@pytest.mark.parametrize("jinja", ["{{ messages[7].content }}", "{% for", "{{ raise_exception('no') }}", "{{ 1 + messages[0].content }}"])
def test_a_template_that_fails_says_why(jinja: str) -> None:
    with pytest.raises(UserError, match=r"cannot write this chat: \w+: ."):
        Chat(CHAT, None, tokenizer("chatml"), jinja).written()


def test_what_is_passed_over() -> None:
    thoughtful = [CHAT[0], {**CHAT[1], "reasoning_content": "North."}]
    check_all_written(chat_of("qwen3", thoughtful))
    check_all_written(chat_of("qwen3", [*thoughtful, *CHAT]))  # left out of the whole, and rightly
    check_all_written(chat_of("chatml", [CHAT[0], {**CHAT[1], "reasoning_content": "", "tool_calls": []}]))
    with pytest.raises(UserError, match="passes over `reasoning_content`.*options.chat_template: FILE, or take"):
        check_all_written(chat_of("chatml", thoughtful))
    with pytest.raises(UserError, match="passes over `tools`"):
        check_all_written(chat_of("chatml", tools=[{"name": "weather"}]))
    check_all_written(chat_of("qwen3", tools=[{"name": "weather"}]))


def test_a_template_is_a_program_in_a_box() -> None:
    with pytest.raises(UserError, match="SecurityError|UndefinedError"):
        Chat(CHAT, None, tokenizer("chatml"), "{{ ''.__class__.__mro__[1].__subclasses__() }}").written()
    assert "strftime_now" in template("llama3"), "or the clock is not tried"
