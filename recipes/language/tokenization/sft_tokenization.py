"""Tokenizes a row and marks the tokens that are learned.

    {"messages": [{"role": …, "content": …}, …], "tools": […]}        a chat; `tools` is optional
    {"prompt": "…", "completion": "…"}                                 plain text, without a template
    {"text": "…", "ends": true}                                        raw text, all of it learned; `ends`: whether its document ends
    {"prompt": [messages…], "completion": [messages…]}                 a chat of which only the completion is learned

An assistant's message with `"weight": 0` (OpenAI's format), or with the mark of another trainer, is read and not learned.

A chat is rendered by the tokenizer's own template and tokenized as one text. `assistant_spans` finds the assistant's part of it. The token
ids before each answer must be the ids that generation would be given there; otherwise the row is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from overtone.data_prep.chats.chat_messages import (
    Message,
    is_plain_text,
    is_raw_text,
    list_read_keys,
    list_unread_keys,
    list_unread_row_keys,
    read_messages,
    read_tools,
)
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.recipes.language.tokenization.assistant_spans import find_turns, has_generation_blocks
from overtone.recipes.language.tokenization.chat_template import Chat, find_template, make_chat
from overtone.recipes.language.tokenization.completion_boundary import (
    TokenizedText,
    find_end_tokens,
    tokenize_completion,
    tokenize_document,
)
from overtone.recipes.language.tokenization.dropped_content import find_dropped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenize_row(
    row: Row, tokenizer: PreTrainedTokenizerBase, supervise: str, allow_dropped: Sequence[str] = ()
) -> tuple[list[int], list[bool]]:
    """ids [S], and a mask [S] that is true for tokens that the model learns to produce.

    `supervise`: `assistant` (every turn of the assistant, or the completion), `last` (its last turn), `everything`; all of a raw text is
    learned. The first token is never learned, because nothing comes before it. `allow_dropped`: what the chat template may drop
    (`Dropped.option`). Raises `UserError` if the row is malformed, if the template drops anything else, if no token is supervised, or if
    the place of the assistant's text is not certain.
    """
    if is_raw_text(row):
        ids = tokenize_document(row, tokenizer)
        spoken = {*range(len(ids))}
    elif is_plain_text(row):
        ids, start = tokenize_completion(str(row["prompt"]), str(row["completion"]), tokenizer)
        spoken = {*range(0 if supervise == "everything" else start, len(ids))}
    else:
        ids, spoken = _tokenize_chat(row, tokenizer, supervise, allow_dropped)
    mask = [number > 0 and number in spoken for number in range(len(ids))]
    if not any(mask):
        raise UserError("nothing is supervised in this row, so nothing would be learned from it; remove the row")
    return ids, mask


def check_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """A sentence for the log on how the mask is found. Raises `UserError` if not even one question and its answer can be masked."""
    question: Message = {"role": "user", "content": "Good day."}
    answer: Message = {"role": "assistant", "content": "And to you."}
    tokenize_row({"messages": [question, answer]}, tokenizer, "assistant")
    if has_generation_blocks(find_template(tokenizer, None)):
        return "supervised: the text in the chat template's {% generation %} blocks, up to the end-of-turn token"
    sentence = "supervised: the text that the chat template adds for the assistant, proven for each row, up to the end-of-turn token"
    try:
        tokenize_row({"messages": [question, answer, question, answer]}, tokenizer, "assistant")
    except UserError:
        return f"{sentence}; in chats with several turns of the assistant, only the last one can be proven"
    return sentence


def list_unused(row: Row, tokenizer: PreTrainedTokenizerBase, allow_dropped: Sequence[str]) -> list[str]:
    """Return what of a row is not used, for counts: its own keys, keys of messages that the chat template does not name, and what it may
    drop and does."""
    unused = [f"key {key}" for key in list_unread_row_keys(row, list_read_keys(row))]
    if is_plain_text(row) or is_raw_text(row):
        return unused
    messages, _ = read_messages(row)
    template = find_template(tokenizer, None)
    unread = (key for key in list_unread_keys(messages) if not re.search(rf"""(\.|['"]){re.escape(key)}\b""", template))
    unused += [f"key {key} of messages" for key in unread]
    if allow_dropped:
        chat = make_chat(messages, read_tools(row), tokenizer)
        unused += [f"{dropped.option}, which the chat template drops" for dropped in find_dropped(chat, chat.render(), learns=True)]
    return list(dict.fromkeys(unused))


def _check_rendered(chat: Chat, text: str, allow_dropped: Sequence[str]) -> None:
    for dropped in find_dropped(chat, text, learns=True):
        if dropped.option not in allow_dropped:
            raise UserError(
                f"the chat template ignores {dropped.what}, so the model would neither see nor learn it: set options.chat_template to a "
                f"template that renders it, remove it from the row, or accept the loss with --options.allow_dropped {dropped.option}"
            )


def _tokenize_chat(
    row: Row, tokenizer: PreTrainedTokenizerBase, supervise: str, allow_dropped: Sequence[str]
) -> tuple[list[int], set[int]]:
    """The ids of a chat, and the indices of the supervised tokens."""
    (messages, first), tools = read_messages(row), read_tools(row)
    unlearned = [number for number, message in enumerate(messages) if message.pop("weight", 1) == 0]
    chat = make_chat(messages, tools, tokenizer)
    tokenized = TokenizedText.of(chat.render(), tokenizer)
    _check_rendered(chat, tokenized.text, allow_dropped)
    if supervise == "everything":
        excluded = find_turns(chat, tokenized.text, unlearned, find_end_tokens(tokenizer)) if unlearned else []
        return tokenized.ids, {*range(len(tokenized.ids))} - {number for turn in excluded for number in tokenized.find_tokens(turn)}
    answers = [message for message in chat.assistant_indices if message >= first]
    if not answers:
        roles = ", ".join(sorted({message["role"] for message in messages[first:]}))
        raise UserError(f"nothing is supervised in this row: no message to learn has the role assistant (roles: {roles})")
    learned = [message for message in answers if message not in unlearned]
    if not learned:
        raise UserError("nothing is supervised in this row: every answer in it has weight 0; remove the row")
    if supervise == "last" and answers[-1] in unlearned:
        raise UserError(
            "nothing is supervised in this row: only the last answer would be, and it has weight 0; remove the row, or use "
            "supervise: assistant"
        )
    turns = find_turns(chat, tokenized.text, learned[-1:] if supervise == "last" else learned, find_end_tokens(tokenizer))
    return tokenized.ids, {number for turn in turns for number in tokenized.find_tokens(turn)}
