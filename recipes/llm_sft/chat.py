"""A row as token ids, and which of them are learned.

    {"messages": [{"role": …, "content": …}, …], "tools": […]}        a chat; `tools` is optional
    {"prompt": "…", "completion": "…"}                                 plain text, no template
    {"prompt": [messages…], "completion": [messages…]}                 a chat of which the completion alone is learned

The ids are always those of the whole text as the tokenizer cuts it, never of pieces put together, and behind what generation would be given
as a prompt they are cut exactly where generation would begin. Where the tokenizer joins the end of a prompt with the beginning of an answer
into one token, the row is refused: generation would never stand before that token.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from finetune.errors import UserError

from .rendering import Chat, template_of
from .turns import Turn, find, marks_blocks

SHAPES = 'expected {"messages": [{"role": …, "content": …}, …]}, or "prompt" and "completion", both text or both such lists'


def tokenise(row: dict[str, Any], tokenizer: Any, supervise: str) -> tuple[list[int], list[bool]]:
    """ids [S], and a mask [S] that is true where the token at that position is to be produced by the model.

    `supervise`: `assistant` (every turn of the assistant, or the completion), `last` (its last turn), `everything`. The first token is never
    a target: nothing stands before it. Raises `UserError` if the row is malformed, if no token of it is supervised, or if what is the
    assistant's cannot be told with certainty (see `turns`).
    """
    if isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        ids, learned = _continued(row["prompt"], row["completion"], tokenizer)
        mask = [number >= learned for number in range(len(ids))]
    else:
        ids, mask = _chatted(row, tokenizer, supervise)
    if supervise == "everything":
        mask = [True] * len(ids)
    mask[:1] = [False] * len(mask[:1])
    if not any(mask):
        raise UserError("nothing is supervised in this row, so nothing would be learned from it: no message is the assistant's")
    return ids, mask


def check_template(tokenizer: Any) -> str:
    """How the mask will be found, in a sentence for the log. Raises `UserError` if not even one question and its answer can be masked."""
    question, answer = {"role": "user", "content": "Good day."}, {"role": "assistant", "content": "And to you."}
    tokenise({"messages": [question, answer]}, tokenizer, "assistant")
    if marks_blocks(template_of(tokenizer, None)):
        return "supervised is what the chat template has in {% generation %}, to the end-of-turn token"
    try:
        tokenise({"messages": [question, answer, question, answer]}, tokenizer, "assistant")
    except UserError:
        return "supervised is what the chat template adds for the assistant, proven for each row; with several answers, for the last only"
    return "supervised is what the chat template adds for the assistant, proven for each row, to the end-of-turn token"


def _continued(prompt: str, completion: str, tokenizer: Any) -> tuple[list[int], int]:
    """Plain text: beginning of text (if this tokenizer puts it), prompt, completion, end of text; and where the completion starts.

    Generation is given the prompt alone, so the prompt is cut alone. Where the whole text would be cut otherwise ("answer: " + "yes", as
    " yes" is a token), the completion is cut alone too, and the two must still spell the same.
    """
    end = tokenizer.eos_token
    if end is None:
        raise UserError("the tokenizer has no end-of-text token (eos_token), so the model could not learn to stop after a completion")
    text = prompt + completion.removesuffix(end) + end
    begin = _begin(tokenizer, prompt)
    given, whole = begin + _cut(tokenizer, prompt), begin + _cut(tokenizer, text)
    if whole[: len(given)] != given:
        apart = given + _cut(tokenizer, text[len(prompt) :])
        if tokenizer.decode(apart) != tokenizer.decode(whole):
            raise UserError(
                f"the tokenizer joins {prompt[-10:]!r} and {completion[:10]!r} over the boundary, and cut apart they spell something else; "
                "move the white space between them to the completion"
            )
        whole = apart
    return whole, len(given)


def _begin(tokenizer: Any, prompt: str) -> list[int]:
    """The beginning-of-text token, where the tokenizer puts one by itself and the text does not have it already."""
    begin = tokenizer.bos_token_id
    puts_it = begin is not None and tokenizer("")["input_ids"][:1] == [begin]
    return [begin] if puts_it and not prompt.startswith(tokenizer.bos_token) else []


def _cut(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text as it stands: a template writes the beginning-of-text token itself, and it must not come twice."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _chatted(row: dict[str, Any], tokenizer: Any, supervise: str) -> tuple[list[int], list[bool]]:
    messages, first = _messages_of(row)
    tools = _tools_of(row)
    chat = Chat(messages, tools, tokenizer, template_of(tokenizer, tools))
    text = Text.of(chat.written(), tokenizer)
    mask = [False] * len(text.ids)
    wanted = [message for message in chat.answers if message >= first]
    if supervise == "last":
        wanted = wanted[-1:]
    if supervise == "everything":
        return text.ids, [True] * len(mask)
    for turn in find(chat, text.text, wanted, _ends(tokenizer)):
        start, stop = text.tokens_of(turn, tokenizer)
        mask[start:stop] = [True] * (stop - start)
    return text.ids, mask


@dataclass(frozen=True)
class Text:
    """A text and its tokens."""

    text: str
    ids: list[int]
    starts: list[int]
    """Of each token, the first character; ascending."""

    @classmethod
    def of(cls, text: str, tokenizer: Any) -> Text:
        cut = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return cls(text, cut["input_ids"], [start for start, _ in cut["offset_mapping"]])

    def tokens_of(self, turn: Turn, tokenizer: Any) -> tuple[int, int]:
        """First token of a turn, and the one past its end. Raises `UserError` if generation would not begin between two tokens.

        The text before the turn is cut anew, from the last added token on: tokenizers never join across one, so all before it stays.
        """
        added = set(tokenizer.get_added_vocab().values())
        before = range(bisect_left(self.starts, turn.start) - 1, -1, -1)
        anchor = next((number for number in before if self.ids[number] in added), 0)
        given = _cut(tokenizer, self.text[self.starts[anchor] if before else 0 : turn.start])
        start = anchor + len(given)
        if self.ids[anchor:start] != given:
            around = self.text[max(0, turn.start - 10) : turn.start], self.text[turn.start :][:10]
            raise UserError(
                f"the tokenizer joins the end of the prompt {around[0]!r} with the beginning of the answer {around[1]!r}, so generation would "
                "never stand before that token; take the white space off the beginning of the assistant's message"
            )
        return start, bisect_left(self.starts, turn.end)


def _ends(tokenizer: Any) -> frozenset[str]:
    """Tokens that can end a turn: those with a meaning beyond their text. `</tool_call>` is added too, but is text to its tokenizer."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return frozenset(special | {tokenizer.eos_token} - {None})


def _messages_of(row: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """All messages of a row, and the number of the first that may be learned."""
    parts = [row[key] for key in (("messages",) if "messages" in row else ("prompt", "completion")) if key in row]
    if not parts or not all(isinstance(part, list) and part for part in parts) or len(parts) == 1 and "messages" not in row:
        raise UserError(f"{SHAPES}; found the keys {', '.join(row) or 'none'}")
    messages = [_checked(number, message) for number, message in enumerate(message for part in parts for message in part)]
    return messages, len(parts[0]) if len(parts) == 2 else 0


def _checked(number: int, message: Any) -> dict[str, Any]:
    """One message without empty keys, which transformers 5 drops and 4 shows to the template, and with its tool calls readable."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise UserError(f"messages[{number}] must be an object with a role, found {message!r:.60}")
    full = {key: value for key, value in message.items() if value is not None}
    if not isinstance(full.get("content", ""), str | list):
        raise UserError(f"messages[{number}].content must be text or a list of parts, found {full['content']!r:.60}")
    if "tool_calls" in full:
        full["tool_calls"] = [_readable(number, call) for call in full["tool_calls"]]
    return full


def _readable(number: int, call: Any) -> Any:
    """A tool call whose arguments are an object. OpenAI's are JSON in a string, which some templates would quote a second time."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        raise UserError(f"messages[{number}].tool_calls must hold objects with a function's name and arguments, found {call!r:.60}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        decoded = {**function, "arguments": json.loads(arguments)}
    except ValueError as error:
        raise UserError(f"messages[{number}]: the arguments of tool call {function['name']} are not JSON ({error})") from None
    return {**call, "function": decoded} if "function" in call else decoded


def _tools_of(row: dict[str, Any]) -> list[Any] | None:
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UserError(f"tools must be a list of JSON schemas, found {tools!r:.60}")
    return tools or None
