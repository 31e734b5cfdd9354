"""Where in the text of a chat the assistant speaks, as its template has it: told by the template, or proven, or refused.

A template with `{% generation %}` tells: what stands in those blocks is the assistant's. Any other template is asked, for each turn, what
generation would have been given there (the messages before it, with the prompt of generation), and what it makes of the chat up to the
end of the turn. The turn is what the second has more than the first. It counts only if the whole chat begins with exactly that: then every
supervised token stands behind the very text behind which generation would have to produce it.

A turn ends with its end-of-turn token, and that is supervised, or the model would never learn to stop; the line break that many templates
put behind it is not, since generation has stopped by then. A template that writes no such token is refused. One whose `{% generation %}`
leaves it out is not: the token that closes the turn when nothing follows is taken with it.

Some templates rewrite what is past. Gemma and Llama do not, and Mistral's does with a system prompt or with tools, which stand before the
last question only: earlier turns are refused, for generation saw them elsewhere. Qwen3's leaves out the thoughts of earlier turns. What it
leaves out is either an empty pair of tags, and then the turn is supervised as it stands in the whole chat, and nothing is lost; or it is
what the row has the assistant think, and then the row is refused: it would be taught to answer without the thoughts that it is shown with.
In the last turn Qwen3's template puts an empty pair where there are no thoughts. It is supervised: with the prompt that the template gives
by default, the model itself has to say that it does not think.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from finetune.errors import UserError
from recipes.language.chat_template import Chat

COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
OPENING = re.compile(r"\{%([-+]?)\s*generation\s*([-+]?)%\}")
CLOSING = re.compile(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}")
TAG = re.compile(r"<[^<>]*>")
PRIVATE_USE = range(0xE000, 0xF900)
"""Code points that stand for nothing (Unicode 16, §23.5)."""


class Turn(NamedTuple):
    """What the assistant produces in one turn, in characters of the chat's text."""

    start: int
    end: int
    """Past the end-of-turn token."""


class UnprovenError(Exception):
    """Why a turn's place is not certain."""


def marks_blocks(template: str) -> bool:
    """Whether the template tells what the assistant says."""
    return OPENING.search(COMMENT.sub("", template)) is not None


def find(chat: Chat, text: str, wanted: list[int], ends: frozenset[str]) -> list[Turn]:
    """The turns of the messages `wanted`, in `text`, the whole chat. `ends`: the tokens that can end a turn.

    Raises `UserError`, with the ways out, if the place of one is not certain.
    """
    try:
        if marks_blocks(chat.template):
            turns = dict(zip(chat.answers, _told(chat, text, ends), strict=True))
            return [turns[message] for message in wanted]
    except UnprovenError as doubt:
        raise UserError(f"the chat template's {{% generation %}} blocks cannot be relied on: {doubt}; mend the template") from None
    return [_certain(chat, text, message, wanted[-1], ends) for message in wanted]


def _certain(chat: Chat, text: str, message: int, last: int, ends: frozenset[str]) -> Turn:
    try:
        return _proven(chat, text, message, ends)
    except UnprovenError as doubt:
        raise UserError(f"messages[{message}]: {doubt}. {_ways_out(chat, text, last, ends)}") from None


def _ways_out(chat: Chat, text: str, last: int, ends: frozenset[str]) -> str:
    ways = "Give a template that has {% generation %} around what the assistant says, as options.chat_template: FILE"
    try:
        _proven(chat, text, last, ends)
    except UnprovenError:
        return ways
    return f"{ways}; or train the last turn alone, which is certain here (options.supervise: last), on a row for each answer"


def _told(chat: Chat, text: str, ends: frozenset[str]) -> list[Turn]:
    """One turn for each message of the assistant, from the template's blocks."""
    blocks = _joined(_blocks(chat, text))
    if len(blocks) != len(chat.answers):
        raise UnprovenError(f"the assistant has {len(chat.answers)} turns in this row, and they mark {len(blocks)}")
    return [_closed(chat, text, message, block, ends) for message, block in zip(chat.answers, blocks, strict=True)]


def _blocks(chat: Chat, text: str) -> list[Turn]:
    """What stands in the blocks, found by writing the chat once more with a mark at each end.

    transformers' own tracking of blocks is off by what came before when a block stands in a macro or a `{% set %}`, and in 4.57 it loses
    a block that comes first. Marks travel with the text, and what is left when they are taken out must be the text, or they changed it.
    """
    begin, end = [chr(code) for code in PRIVATE_USE if chr(code) not in text][:2]
    marked = chat.written(template=_with_marks(chat.template, begin, end))
    pieces = re.split(f"([{begin}{end}])", marked)
    if "".join(pieces[::2]) != text or "".join(pieces[1::2]) != (begin + end) * (len(pieces) // 4):
        raise UnprovenError("they stand within each other, or what they hold is changed afterwards")
    lengths = [len(piece) for piece in pieces[::2]]
    edges = [sum(lengths[:number]) for number in range(1, len(lengths))]
    return [Turn(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def _with_marks(template: str, begin: str, end: str) -> str:
    """Tags for tags, so that Jinja trims the white space around them as it did."""
    opened = OPENING.sub(lambda tag: f"{{%{tag[1]} if true %}}{begin}{{% endif {tag[2]}%}}", template)
    return CLOSING.sub(lambda tag: f"{{%{tag[1]} if true %}}{end}{{% endif {tag[2]}%}}", opened)


def _joined(blocks: list[Turn]) -> list[Turn]:
    """Blocks that touch (thoughts in one, the answer in the next) as one."""
    starts = [block.start for before, block in pairwise([Turn(-1, -1), *blocks]) if before.end != block.start]
    stops = [block.end for block, after in pairwise([*blocks, Turn(-1, -1)]) if block.end != after.start]
    return [Turn(*pair) for pair in zip(starts, stops, strict=True)]


def _closed(chat: Chat, text: str, message: int, block: Turn, ends: frozenset[str]) -> Turn:
    """A block to the end of its end-of-turn token, which it may hold or leave out."""
    inside = text[block.start : block.end].rstrip()
    if _end_of(inside, ends):
        return Turn(block.start, block.start + len(inside))
    alone = chat.written(message + 1).rstrip()
    end = _end_of(alone, ends)
    if end is None:
        raise UnprovenError(f"{_unended(alone)} in messages[{message}]")
    behind = re.compile(rf"\s*{re.escape(end)}").match(text, block.end)
    if behind is None:
        raise UnprovenError(f"messages[{message}] ends with {end!r} when nothing follows it, but {text[block.end :][:20]!r} stands there")
    return Turn(block.start, behind.end())


def _proven(chat: Chat, text: str, message: int, ends: frozenset[str]) -> Turn:
    """The turn of one message, from what generation would have been given there."""
    given, alone = _beginning(chat, message, prompt=True), _beginning(chat, message + 1, prompt=False)
    if not text.startswith(given):
        raise UnprovenError(f"the template rewrites what is past: generation would have been given {_difference(given, text)}")
    if not alone.startswith(given):
        raise UnprovenError(f"the template's prompt for generation is not how it begins the turn: {_difference(given, alone)}")
    said = alone[len(given) :].rstrip()
    end = _end_of(said, ends)
    if end is None:
        raise UnprovenError(_unended(said))
    if text.startswith(said, len(given)):
        return Turn(len(given), len(given) + len(said))
    shown = text[len(given) :].partition(end)[0] + end
    _check_nothing_lost(said, shown)
    return Turn(len(given), len(given) + len(shown))


def _beginning(chat: Chat, until: int, prompt: bool) -> str:
    try:
        return chat.written(until, prompt)
    except UserError as error:
        raise UnprovenError(f"the {until} messages up to there cannot stand alone ({error})") from None


def _check_nothing_lost(said: str, shown: str) -> None:
    """A turn that the whole chat shows otherwise must be its end, and the missing beginning must say nothing."""
    if not said.endswith(shown):
        raise UnprovenError(f"the template shows an earlier turn otherwise than it was said: {_difference(said, shown)}")
    lost = said.removesuffix(shown)
    if TAG.sub("", lost).strip():
        raise UnprovenError(f"the template leaves {lost[:40]!r} out of earlier turns, so they would be taught without it")


def _end_of(said: str, ends: frozenset[str]) -> str | None:
    return max((end for end in ends if said.endswith(end)), key=len, default=None)


def _unended(said: str) -> str:
    return f"the template writes no end-of-turn token of this tokenizer after {said[-20:]!r}, so the model would not learn to stop"


def _difference(one: str, other: str) -> str:
    """Where two texts part, in a few words."""
    place = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
    return f"{one[place:][:30]!r} where the chat has {other[place:][:30]!r}"
