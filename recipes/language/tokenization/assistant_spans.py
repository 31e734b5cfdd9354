"""Finds where the assistant speaks in the text of a chat. A row for which this cannot be proven is refused.

A template with `{% generation %}` marks it: the text in these blocks is the assistant's. With any other template, each turn is rendered
twice: the messages before it with the generation prompt, which is what generation would be given; and the chat up to the end of the turn.
The turn is the text that the second has and the first has not. It is accepted only if the whole chat begins with the first text. Then each
supervised token follows exactly the text after which generation would have to produce it.

A turn includes its end-of-turn token, or the model would not learn to stop. It excludes the line break that many templates write after
that token, because generation has stopped by then. A template that writes no end-of-turn token is refused. If the token comes after the
`{% generation %}` block, it is added to the turn.

Some templates render earlier turns differently once more messages follow. Those of Gemma and Llama do not. Mistral's template puts the
system prompt or the tools in front of the last question, so earlier turns were generated from another text: they are refused. Qwen3's
template drops the thoughts of earlier turns. If it drops an empty pair of tags, the turn is supervised as the whole chat shows it, and
nothing is lost. If it drops thoughts that the row contains, the row is refused: the model would learn to answer without them.
In the last turn Qwen3's template writes an empty pair of tags if there are no thoughts. These tags are supervised, because with the
template's default prompt the model itself has to produce them.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.chat_template import Chat

COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
OPENING = re.compile(r"\{%([-+]?)\s*generation\s*([-+]?)%\}")
CLOSING = re.compile(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}")
TAG = re.compile(r"<[^<>]*>")
PRIVATE_USE = range(0xE000, 0xF900)
"""Code points without an assigned meaning (Unicode 16, §23.5)."""


class TurnSpan(NamedTuple):
    """The text that the assistant produces in one turn, as a range of characters of the chat's text."""

    start: int
    end: int
    """After the end-of-turn token."""


class UnprovenError(Exception):
    """The place of a turn is not certain. The message is the reason."""


def has_generation_blocks(template: str) -> bool:
    """Return whether the template marks the assistant's text with `{% generation %}`."""
    return OPENING.search(COMMENT.sub("", template)) is not None


def find_turns(chat: Chat, text: str, messages: list[int], end_tokens: frozenset[str]) -> list[TurnSpan]:
    """Return the spans of these messages of the assistant (indices into `chat.messages`) in `text`, the whole chat.

    `end_tokens`: the tokens that can end a turn. Raises `UserError`, which says how to solve it, if the place of a turn is not certain.
    """
    try:
        if has_generation_blocks(chat.template):
            spans = dict(zip(chat.assistant_indices, _spans_from_blocks(chat, text, end_tokens), strict=True))
            return [spans[message] for message in messages]
    except UnprovenError as reason:
        raise UserError(f"the chat template's {{% generation %}} blocks cannot be used: {reason}; correct the template") from None
    proven: list[TurnSpan] = []
    for message in messages:
        try:
            proven.append(_prove_span(chat, text, message, end_tokens))
        except UnprovenError as reason:
            solutions = _suggest_solutions(chat, text, messages[-1], end_tokens)
            raise UserError(f"messages[{message}]: {reason}. {solutions}") from None
    return proven


def _suggest_solutions(chat: Chat, text: str, last: int, end_tokens: frozenset[str]) -> str:
    solution = "Set options.chat_template to a template that has {% generation %} around the assistant's text"
    try:
        _prove_span(chat, text, last, end_tokens)
    except UnprovenError:
        return solution
    return f"{solution}; or train only the last turn, whose place is certain (options.supervise: last), with one row for each answer"


def _spans_from_blocks(chat: Chat, text: str, end_tokens: frozenset[str]) -> list[TurnSpan]:
    """One span for each message of the assistant, from the template's blocks."""
    blocks = _join_adjacent(_find_blocks(chat, text))
    if len(blocks) != len(chat.assistant_indices):
        raise UnprovenError(f"the assistant has {len(chat.assistant_indices)} turns in this row, but the blocks mark {len(blocks)}")
    pairs = zip(chat.assistant_indices, blocks, strict=True)
    return [_extend_to_end_token(chat, text, message, block, end_tokens) for message, block in pairs]


def _find_blocks(chat: Chat, text: str) -> list[TurnSpan]:
    """The text of each block, found by rendering the chat again with a mark at both ends of the blocks.

    transformers can track blocks itself, but places them wrongly if a block is in a macro or a `{% set %}`, and version 4.57 loses a block
    that comes first. Marks move with the text. The text without the marks must be the original, or the template changed what is in a block.
    """
    begin, end = [chr(code) for code in PRIVATE_USE if chr(code) not in text][:2]
    # Each tag is replaced by another tag, so that Jinja trims the same white space around it.
    opened = OPENING.sub(lambda tag: f"{{%{tag[1]} if true %}}{begin}{{% endif {tag[2]}%}}", chat.template)
    marked = chat.render(template=CLOSING.sub(lambda tag: f"{{%{tag[1]} if true %}}{end}{{% endif {tag[2]}%}}", opened))
    pieces = re.split(f"([{begin}{end}])", marked)
    if "".join(pieces[::2]) != text or "".join(pieces[1::2]) != (begin + end) * (len(pieces) // 4):
        raise UnprovenError("they are nested, or their text is changed after the block")
    lengths = [len(piece) for piece in pieces[::2]]
    edges = [sum(lengths[:number]) for number in range(1, len(lengths))]
    return [TurnSpan(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def _join_adjacent(blocks: list[TurnSpan]) -> list[TurnSpan]:
    """Joins blocks that touch: a template can have the thoughts in one and the answer in the next."""
    starts = [block.start for before, block in pairwise([TurnSpan(-1, -1), *blocks]) if before.end != block.start]
    stops = [block.end for block, after in pairwise([*blocks, TurnSpan(-1, -1)]) if block.end != after.start]
    return [TurnSpan(*pair) for pair in zip(starts, stops, strict=True)]


def _extend_to_end_token(chat: Chat, text: str, message: int, block: TurnSpan, end_tokens: frozenset[str]) -> TurnSpan:
    """A block up to its end-of-turn token, which can be inside the block or after it."""
    inside = text[block.start : block.end].rstrip()
    if _find_end_token(inside, end_tokens):
        return TurnSpan(block.start, block.start + len(inside))
    alone = chat.render(message + 1).rstrip()
    end = _find_end_token(alone, end_tokens)
    if end is None:
        raise UnprovenError(f"{_describe_missing_end(alone)} in messages[{message}]")
    following = re.compile(rf"\s*{re.escape(end)}").match(text, block.end)
    if following is None:
        found = text[block.end :][:20]
        raise UnprovenError(f"messages[{message}] ends with {end!r} if it is the last message, but the whole chat has {found!r} there")
    return TurnSpan(block.start, following.end())


def _prove_span(chat: Chat, text: str, message: int, end_tokens: frozenset[str]) -> TurnSpan:
    """The span of one message, from the text that generation would have been given before it."""
    given = _render_beginning(chat, message, add_generation_prompt=True)
    alone = _render_beginning(chat, message + 1, add_generation_prompt=False)
    if not text.startswith(given):
        raise UnprovenError(f"the template rewrites earlier messages: generation would have been given {_describe_difference(given, text)}")
    if not alone.startswith(given):
        raise UnprovenError(f"the template's generation prompt is not the beginning of the turn: {_describe_difference(given, alone)}")
    produced = alone[len(given) :].rstrip()
    end = _find_end_token(produced, end_tokens)
    if end is None:
        raise UnprovenError(_describe_missing_end(produced))
    if text.startswith(produced, len(given)):
        return TurnSpan(len(given), len(given) + len(produced))
    shown = text[len(given) :].partition(end)[0] + end
    _check_nothing_lost(produced, shown)
    return TurnSpan(len(given), len(given) + len(shown))


def _render_beginning(chat: Chat, until: int, add_generation_prompt: bool) -> str:
    try:
        return chat.render(until, add_generation_prompt)
    except UserError as error:
        raise UnprovenError(f"the template does not accept the {until} messages before it without the rest ({error})") from None


def _check_nothing_lost(produced: str, shown: str) -> None:
    """A turn that the whole chat shows shortened must be shown to its end, and the dropped beginning must hold nothing but tags."""
    if not produced.endswith(shown):
        raise UnprovenError(f"the template shows an earlier turn unlike it was generated: {_describe_difference(produced, shown)}")
    lost = produced.removesuffix(shown)
    if TAG.sub("", lost).strip():
        raise UnprovenError(f"the template drops {lost[:40]!r} from earlier turns, so they would be learned without it")


def _find_end_token(text: str, end_tokens: frozenset[str]) -> str | None:
    """The token that a text ends with; None if it ends with none of them."""
    return max((end for end in end_tokens if text.endswith(end)), key=len, default=None)


def _describe_missing_end(text: str) -> str:
    return f"the template writes no end-of-turn token of this tokenizer after {text[-20:]!r}, so the model would not learn to stop"


def _describe_difference(one: str, other: str) -> str:
    """Return what two texts have at the first place where they differ."""
    place = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
    return f"{one[place:][:30]!r} where the chat has {other[place:][:30]!r}"
