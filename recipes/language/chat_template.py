"""A chat as its template writes it: whole, or up to some message, with or without the prompt of generation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from finetune.errors import UserError

TODAY = date(2024, 7, 26)
"""What templates are told that ask for the day: the one that Llama 3's falls back on. With the true one, the same row would have other
tokens tomorrow, and a run that goes on would not be the same run."""
PARTS = ("tool_calls", "reasoning_content", "reasoning", "thinking")
"""What a message of the assistant can say besides its content."""


@dataclass(frozen=True)
class Chat:
    """One conversation, and who writes it out."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    tokenizer: Any
    template: str
    """Jinja, of the tokenizer's own dialect."""

    @property
    def answers(self) -> list[int]:
        """Which messages are the assistant's."""
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]

    def written(self, until: int | None = None, prompt: bool = False, template: str | None = None) -> str:
        """The messages before `until` (all of them) as text, by `template` (its own). With `prompt`: and what generation is given besides.

        Raises `UserError` with the template's own objection if it has one.
        """
        try:
            [text] = self.tokenizer.apply_chat_template(
                [self.messages[:until]],  # a batch of one, since no conversation at all is no conversation to transformers
                tools=self.tools,
                chat_template=template or self.template,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except Exception as error:  # a template is a program of somebody else's and raises whatever its author overlooked
            raise UserError(f"the chat template cannot write this chat: {type(error).__name__}: {error}") from error
        return str(text)


def check_all_written(chat: Chat) -> None:
    """Refuse a template that passes over what the row has: one that writes the same without it.

    What a message says is taken from the chat that ends with it, since it is right of some templates to leave it out later.
    """
    for part in PARTS:
        carriers = [number for number, message in enumerate(chat.messages) if message.get(part)]
        if carriers:
            until = chat.messages[: carriers[0] + 1]
            rest = [{key: value for key, value in message.items() if key != part} for message in until]
            _check_read(part, replace(chat, messages=until), replace(chat, messages=rest))
    if chat.tools:
        _check_read("tools", chat, replace(chat, tools=None))


def _check_read(part: str, full: Chat, poorer: Chat) -> None:
    try:
        alike = full.written() == poorer.written()
    except UserError:  # the template misses what was taken away, or wants more of a chat: it reads, at any rate
        return
    if alike:
        raise UserError(
            f"the chat template passes over `{part}`, so the model would neither see nor learn it: give one that writes it, with "
            f"options.chat_template: FILE, or take `{part}` out of the row"
        )


def template_of(tokenizer: Any, tools: list[Any] | None) -> str:
    """The template that the tokenizer uses for a chat with these tools, on a day that stands still. Raises `UserError` if it has none."""
    try:
        template = str(tokenizer.get_chat_template(None, tools=tools))
    except ValueError:
        raise UserError(
            "the tokenizer has no chat template, so nothing says how `messages` become text: give one with options.chat_template: FILE "
            "(Jinja), start from the model's instruct variant, or train on rows of `prompt` and `completion` as text"
        ) from None
    return f"{_clock()}\n{template}" if "strftime_now" in template else template


def _clock() -> str:
    """A macro in the place of transformers' clock, for which version 5 lets no function be given."""
    parts = "".join(f".replace('%{letter}', '{TODAY:%{letter}}')" for letter in "aAbBdHIjmMpSyY")
    return f"{{% macro strftime_now(form) %}}{{{{ form{parts} }}}}{{% endmacro %}}"
