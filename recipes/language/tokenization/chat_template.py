"""Renders a chat with its template: whole or up to some message, with or without the generation prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from overtone.data_prep.chats.chat_messages import Message
from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.template_render_watchdog import check_length, limit_rendering

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIXED_DATE = date(2024, 7, 26)
"""Current date for templates that write one; Llama 3's template falls back to this day. With the real date, the same row would have other
tokens tomorrow, and a resumed run would train on other data."""
OPTIONAL_FIELDS = ("tool_calls", "reasoning_content", "reasoning", "thinking")
"""Fields of an assistant's message that can hold text beside its content."""


@dataclass(frozen=True)
class Chat:
    """One conversation, with the template and the tokenizer that render it."""

    messages: list[Message]
    tools: list[Any] | None
    tokenizer: PreTrainedTokenizerBase
    template: str
    """Jinja in the dialect of transformers."""
    as_parts: bool = False
    """True if the template is given content as a list with one part."""

    @property
    def assistant_indices(self) -> list[int]:
        """Indices of the assistant's messages."""
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]

    def render(self, until: int | None = None, add_generation_prompt: bool = False, template: str | None = None) -> str:
        """Return the text of the messages before index `until` (default: all), by `template` (default: the chat's own).

        Raises `UserError` with the template's own error if it fails.
        """
        messages = self.messages[:until]
        if self.as_parts:
            messages = [
                {**message, "content": [{"type": "text", "text": message["content"]}]} if message.get("content") else message
                for message in messages
            ]
        try:
            with limit_rendering(template or self.template):
                [text] = self.tokenizer.apply_chat_template(
                    [messages],  # a batch of one, because transformers refuses an empty conversation outside of a batch
                    tools=self.tools,
                    chat_template=template or self.template,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                )
                check_length(text)
        except Exception as error:  # a template is a third party's program, and can raise any exception
            raise UserError(f"the chat template cannot render this chat: {type(error).__name__}: {error}") from error
        return str(text)


def make_chat(messages: list[Message], tools: list[Any] | None, tokenizer: PreTrainedTokenizerBase) -> Chat:
    """Return a chat for the tokenizer's template. Raises `UserError` if there is none.

    Newer OpenAI models call the system message the developer's. For a template that does not know this role, it is the system's.
    """
    template = find_template(tokenizer, tools)
    # Templates of some models that also read images render content as a list of parts, and not as text.
    as_parts = not _renders_probe(tokenizer, template, False) and _renders_probe(tokenizer, template, True)
    if "developer" not in template or not _renders_probe(tokenizer, template, as_parts, "developer"):
        messages = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
    return Chat(messages, tools, tokenizer, template, as_parts)


@lru_cache(maxsize=256)
def _renders_probe(tokenizer: PreTrainedTokenizerBase, template: str, as_parts: bool, *before: str) -> bool:
    """Return whether the template renders the content of a question and its answer, and of messages with the roles `before` before them."""
    probe = [{"role": role, "content": f"mark of {role}"} for role in (*before, "user", "assistant")]
    try:
        text = Chat(probe, None, tokenizer, template, as_parts).render()
    except UserError:
        return False
    return all(message["content"] in text for message in probe)


def find_ignored_fields(chat: Chat, text: str) -> Iterator[str]:
    """Yield the names of fields that the template ignores, which means that it renders the same text without the field. `text`: the whole
    chat.

    The fields of a message are checked in the chat that ends with it, because a template may drop them from earlier turns.
    """
    for name in OPTIONAL_FIELDS:
        carriers = [number for number, message in enumerate(chat.messages) if message.get(name)]
        if carriers:
            until = chat.messages[: carriers[0] + 1]
            rest = [{key: value for key, value in message.items() if key != name} for message in until]
            if _renders(replace(chat, messages=rest), replace(chat, messages=until).render()):
                yield name
    if chat.tools and _renders(replace(chat, tools=None), text):
        yield "tools"


def _renders(chat: Chat, text: str) -> bool:
    try:
        return chat.render() == text
    except UserError:  # the template fails without the field, so it does read it
        return False


def find_template(tokenizer: PreTrainedTokenizerBase, tools: list[Any] | None) -> str:
    """Return the template that the tokenizer uses for a chat with these tools, with a fixed date. Raises `UserError` if there is none."""
    try:
        template = str(tokenizer.get_chat_template(None, tools=tools))
    except ValueError:
        raise UserError(
            "the tokenizer has no chat template, so `messages` cannot be rendered: set options.chat_template to a Jinja file, start from "
            "the model's instruct variant, or train on rows with `prompt` and `completion` as text"
        ) from None
    if "strftime_now" not in template:
        return template
    # A Jinja macro replaces transformers' clock; version 5 accepts no function for it.
    parts = "".join(f".replace('%{letter}', '{FIXED_DATE:%{letter}}')" for letter in "aAbBdHIjmMpSyY")
    return f"{{% macro strftime_now(form) %}}{{{{ form{parts} }}}}{{% endmacro %}}\n{template}"
