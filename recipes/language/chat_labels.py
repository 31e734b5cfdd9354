"""A row as token ids, and which of them are learned.

    {"messages": [{"role": …, "content": …}, …], "tools": […]}        a chat; `tools` is optional
    {"prompt": "…", "completion": "…"}                                 plain text, no template
    {"prompt": [messages…], "completion": [messages…]}                 a chat of which only the completion is learned

A chat's text is what the tokenizer's own template makes of it, and its ids are those of the whole text, cut at once. What the assistant
says in it is found by `assistant_spans`. In front of each answer the ids are those that generation would be given there, or
the row is refused.
"""

from __future__ import annotations

from typing import Any

from finetune.errors import UserError
from recipes.language.assistant_spans import find, marks_blocks
from recipes.language.chat_template import Chat, check_all_written, template_of
from recipes.language.messages import is_plain, messages_of, tools_of
from recipes.language.token_offsets import Cut, continued, turn_ends


def tokenise(row: dict[str, Any], tokenizer: Any, supervise: str) -> tuple[list[int], list[bool]]:
    """ids [S], and a mask [S] that is true where the token at that position is to be produced by the model.

    `supervise`: `assistant` (every turn of the assistant, or the completion), `last` (its last turn), `everything`. The first token is
    never a target: nothing stands before it. Raises `UserError` if the row is malformed, if no token of it is supervised, or if what is
    the assistant's is not certain.
    """
    ids, spoken = _continuation(row, tokenizer) if is_plain(row) else _chat(row, tokenizer, supervise)
    if supervise == "everything":
        spoken = {*range(len(ids))}
    mask = [number > 0 and number in spoken for number in range(len(ids))]
    if not any(mask):
        raise UserError("nothing is supervised in this row, so nothing would be learned from it; take it out")
    return ids, mask


def check_template(tokenizer: Any) -> str:
    """How the mask will be found, in a sentence for the log. Raises `UserError` if not even a question and its answer can be masked."""
    question, answer = {"role": "user", "content": "Good day."}, {"role": "assistant", "content": "And to you."}
    tokenise({"messages": [question, answer]}, tokenizer, "assistant")
    if marks_blocks(template_of(tokenizer, None)):
        return "supervised is what the chat template has in {% generation %}, to the end-of-turn token"
    way = "supervised is what the chat template adds for the assistant, proven for each row, to the end-of-turn token"
    try:
        tokenise({"messages": [question, answer, question, answer]}, tokenizer, "assistant")
    except UserError:
        return f"{way}; where the assistant has several turns, only the last one can be proven"
    return way


def _continuation(row: dict[str, Any], tokenizer: Any) -> tuple[list[int], set[int]]:
    ids, start = continued(row["prompt"], row["completion"], tokenizer)
    return ids, {*range(start, len(ids))}


def _chat(row: dict[str, Any], tokenizer: Any, supervise: str) -> tuple[list[int], set[int]]:
    """The ids of a chat, and the numbers of those that the assistant says."""
    (messages, first), tools = messages_of(row), tools_of(row)
    chat = Chat(messages, tools, tokenizer, template_of(tokenizer, tools))
    cut = Cut.of(chat.written(), tokenizer)
    check_all_written(chat)
    if supervise == "everything":
        return cut.ids, set()
    wanted = [message for message in chat.answers if message >= first]
    if not wanted:
        roles = ", ".join(sorted({message["role"] for message in messages[first:]}))
        raise UserError(f"nothing is supervised in this row: no message to learn has the role assistant (roles: {roles})")
    turns = find(chat, cut.text, wanted[-1:] if supervise == "last" else wanted, turn_ends(tokenizer))
    return cut.ids, {number for turn in turns for number in cut.tokens_of(turn)}
