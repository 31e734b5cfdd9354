"""Renders a chat with its template: whole or up to some message, with or without the generation prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from finetune.errors import UserError
from recipes.language.template_render_watchdog import check_length, limit_rendering

FIXED_DATE = date(2024, 7, 26)
"""Current date for templates that write one; Llama 3's template falls back to this day. With the real date, the same row would have other
tokens tomorrow, and a resumed run would train on other data."""
OPTIONAL_FIELDS = ("tool_calls", "reasoning_content", "reasoning", "thinking")
"""Fields of an assistant's message that can hold text beside its content."""


@dataclass(frozen=True)
class Chat:
    """One conversation, with the template and the tokenizer that render it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    tokenizer: Any
    template: str
    """Jinja in the dialect of transformers."""

    @property
    def assistant_indices(self) -> list[int]:
        """Indices of the assistant's messages."""
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]

    def render(self, until: int | None = None, add_generation_prompt: bool = False, template: str | None = None) -> str:
        """The text of the messages before index `until` (default: all), by `template` (default: the chat's own).

        Raises `UserError` with the template's own error if it fails.
        """
        try:
            with limit_rendering(template or self.template):
                [text] = self.tokenizer.apply_chat_template(
                    [self.messages[:until]],  # a batch of one, because transformers refuses an empty conversation outside of a batch
                    tools=self.tools,
                    chat_template=template or self.template,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                )
                check_length(text)
        except Exception as error:  # a template is a third party's program, and can raise any exception
            raise UserError(f"the chat template cannot render this chat: {type(error).__name__}: {error}") from error
        return str(text)


def check_fields_rendered(chat: Chat) -> None:
    """Raises `UserError` for a template that ignores a field of the row, which means that it renders the same text without the field.

    The fields of a message are checked in the chat that ends with it, because a template may drop them from earlier turns.
    """
    for name in OPTIONAL_FIELDS:
        carriers = [number for number, message in enumerate(chat.messages) if message.get(name)]
        if carriers:
            until = chat.messages[: carriers[0] + 1]
            rest = [{key: value for key, value in message.items() if key != name} for message in until]
            _check_rendered(name, replace(chat, messages=until), replace(chat, messages=rest))
    if chat.tools:
        _check_rendered("tools", chat, replace(chat, tools=None))


def _check_rendered(name: str, full: Chat, reduced: Chat) -> None:
    try:
        same = full.render() == reduced.render()
    except UserError:  # the template fails without the field, so it does read it
        return
    if same:
        raise UserError(
            f"the chat template ignores `{name}`, so the model would neither see nor learn it: set options.chat_template to a template "
            f"that renders it, or remove `{name}` from the row"
        )


def find_template(tokenizer: Any, tools: list[Any] | None) -> str:
    """The template that the tokenizer uses for a chat with these tools, with a fixed date. Raises `UserError` if there is none."""
    try:
        template = str(tokenizer.get_chat_template(None, tools=tools))
    except ValueError:
        raise UserError(
            "the tokenizer has no chat template, so `messages` cannot be rendered: set options.chat_template to a Jinja file, start from "
            "the model's instruct variant, or train on rows with `prompt` and `completion` as text"
        ) from None
    return f"{_fixed_clock()}\n{template}" if "strftime_now" in template else template


def _fixed_clock() -> str:
    """A Jinja macro that replaces transformers' clock; version 5 accepts no function for it."""
    parts = "".join(f".replace('%{letter}', '{FIXED_DATE:%{letter}}')" for letter in "aAbBdHIjmMpSyY")
    return f"{{% macro strftime_now(form) %}}{{{{ form{parts} }}}}{{% endmacro %}}"
