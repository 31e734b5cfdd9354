"""Tests of `chat_template`: rendering with a fixed date, whole or in part, and templates that ignore fields."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.chat_template import FIXED_DATE, Chat, find_ignored_fields, find_template, make_chat
from tests.recipes.llm_sft.families import FAMILIES, template, tokenizer

CHAT = [{"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "Cold."}]


def chat_of(family: str, messages: list[dict[str, Any]] = CHAT, tools: list[Any] | None = None) -> Chat:
    return Chat(messages, tools, tokenizer(family), find_template(tokenizer(family), tools))


def test_a_chat_is_rendered_whole_in_part_and_with_the_generation_prompt() -> None:
    chat = chat_of("chatml")
    assert chat.assistant_indices == [1]
    assert chat.render() == "<|im_start|>user\nOslo?<|im_end|>\n<|im_start|>assistant\nCold.<|im_end|>\n"
    assert chat.render(1, add_generation_prompt=True) == "<|im_start|>user\nOslo?<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render(0) == ""
    assert chat.render(template="{{ messages[1].content }}") == "Cold."


def test_templates_see_a_fixed_date() -> None:
    assert f"Today Date: {FIXED_DATE:%d %b %Y}" in chat_of("llama3").render()
    other = tokenizer("chatml", "llama3")
    jinja = "  {{ strftime_now('%Y-%m-%d, %A %B %H:%M:%S') }}\n"
    other_chat = Chat(CHAT, None, other, find_template(_Templated(jinja), None))
    assert other_chat.render() == f"  {FIXED_DATE:%Y-%m-%d, %A %B} 00:00:00", "and the macro for the date adds no text"


class _Templated:
    def __init__(self, jinja: str) -> None:
        self._jinja = jinja

    def get_chat_template(self, _: None, tools: Any) -> str:
        return self._jinja


def test_a_chat_with_tools_uses_the_template_for_tools() -> None:
    of = tokenizer("mistral", "chatml")
    kept, of.chat_template = of.chat_template, {"default": "plain", "tool_use": "with tools"}
    try:
        assert find_template(of, None) == "plain" and find_template(of, [{"name": "weather"}]) == "with tools"
    finally:
        of.chat_template = kept


def test_a_tokenizer_without_a_template_is_refused() -> None:
    of = tokenizer("gemma2", "gemma2")
    kept, of.chat_template = of.chat_template, None
    try:
        with pytest.raises(UserError, match="has no chat template.*set options.chat_template to"):
            find_template(of, None)
    finally:
        of.chat_template = kept


@pytest.mark.parametrize("jinja", ["{{ messages[7].content }}", "{% for", "{{ raise_exception('no') }}", "{{ 1 + messages[0].content }}"])
def test_the_error_of_a_template_is_reported(jinja: str) -> None:
    with pytest.raises(UserError, match=r"cannot render this chat: \w+: ."):
        Chat(CHAT, None, tokenizer("chatml"), jinja).render()


def ignored(chat: Chat) -> list[str]:
    return [*find_ignored_fields(chat, chat.render())]


def test_fields_that_a_template_ignores_are_found() -> None:
    thoughtful = [CHAT[0], {**CHAT[1], "reasoning_content": "North."}]
    assert ignored(chat_of("qwen3", thoughtful)) == []
    assert ignored(chat_of("qwen3", [*thoughtful, *CHAT])) == []  # it may drop the thoughts of earlier turns
    assert ignored(chat_of("chatml", [CHAT[0], {**CHAT[1], "reasoning_content": "", "tool_calls": []}])) == []
    assert ignored(chat_of("chatml", thoughtful, tools=[{"name": "weather"}])) == ["reasoning_content", "tools"]
    assert ignored(chat_of("qwen3", tools=[{"name": "weather"}])) == []


def test_a_developer_message_is_the_systems_for_a_template_that_does_not_know_the_role() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    assert "<|im_start|>system\nBe brief.<|im_end|>" in make_chat([developer, *CHAT], None, tokenizer("chatml")).render()
    other = tokenizer("chatml", "llama3")
    knows = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}{# developer #}"
    kept, other.chat_template = other.chat_template, knows
    try:
        assert make_chat([developer], None, other).render() == "developer: Be brief.;"
    finally:
        other.chat_template = kept


def test_a_template_that_reads_only_parts_gets_parts() -> None:
    parts = "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}"
    of = tokenizer("chatml", "gemma2")
    kept, of.chat_template = of.chat_template, parts
    try:
        chat = make_chat([*CHAT, {"role": "assistant"}], None, of)
        assert chat.as_parts and chat.render() == "user:Oslo?;assistant:Cold.;assistant:"
    finally:
        of.chat_template = kept
    assert not any(make_chat(CHAT, None, tokenizer(family)).as_parts for family in FAMILIES)


def test_a_template_runs_in_a_sandbox() -> None:
    with pytest.raises(UserError, match="SecurityError|UndefinedError"):
        Chat(CHAT, None, tokenizer("chatml"), "{{ ''.__class__.__mro__[1].__subclasses__() }}").render()
    assert "strftime_now" in template("llama3"), "or the test of the date tests nothing"
