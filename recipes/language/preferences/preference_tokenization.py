"""Reads a row with a pair of answers, or with one answer and whether it is a good one.

    {"prompt": "…", "chosen": "…", "rejected": "…"}                            texts, without a template
    {"prompt": [messages…], "chosen": [messages…], "rejected": [messages…]}    a chat and two ways to continue it; `tools` is optional
    {"chosen": [messages…], "rejected": [messages…]}                           two chats with the same beginning
    {"prompt": …, "completion": …, "label": true}                              one answer, as texts or as messages

In the third form, `prompt` may repeat the first question as text, as UltraFeedback's rows do. Each side is read as a row of llm_sft with
`prompt` and `completion`, so the tokens of an answer are proven in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overtone.data_prep.chats.chat_messages import list_unread_row_keys
from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.sft_tokenization import list_unused, tokenize_row

SIDES = ("chosen", "rejected")
PAIR = ("prompt", *SIDES)
LABELLED = ("prompt", "completion", "label")
Side = tuple[list[int], list[bool]]
"""ids [S], and a mask [S] that is true for tokens of the answer."""


def tokenize_pair(row: dict[str, Any], tokenizer: Any, allow_dropped: Sequence[str]) -> tuple[Side, Side]:
    """Return the chosen and the rejected side. Raises `UserError` for a malformed row, and if both sides have the same tokens."""
    sides = []
    for name, side in zip(SIDES, split_sides(row), strict=True):
        try:
            sides.append(tokenize_row(side, tokenizer, "assistant", allow_dropped))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    chosen, rejected = sides
    if chosen[0] == rejected[0]:
        raise UserError("chosen and rejected have the same tokens, so the pair has no preference; remove the row")
    return chosen, rejected


def tokenize_labelled(row: dict[str, Any], tokenizer: Any, allow_dropped: Sequence[str]) -> tuple[Side, bool]:
    """The answer of a row with `prompt`, `completion` and `label`, and the label. Raises `UserError` for a malformed row."""
    if missing := [name for name in LABELLED if name not in row]:
        pair = "; a pair of answers has two labels, so it is two such rows" if "rejected" in row else ""
        raise UserError(f"has no {' and no '.join(map(repr, missing))}; a row needs 'prompt', 'completion' and 'label'{pair}")
    if not isinstance(row["label"], bool):
        raise UserError(f"label must be true (a good answer) or false, found {row['label']!r:.40}")
    return tokenize_row(_make_completion(row), tokenizer, "assistant", allow_dropped), row["label"]


def list_unused_parts(row: dict[str, Any], tokenizer: Any, allow_dropped: Sequence[str], read: Sequence[str]) -> list[str]:
    """Return what of the row is not used, for counts. `read`: the keys that are used besides `tools`, those of a pair or `LABELLED`."""
    keys = [f"key {key}" for key in list_unread_row_keys(row, (*read, "tools"))]
    sides = (_make_completion(row),) if "completion" in read else split_sides(row)
    return list(dict.fromkeys([*keys, *(part for side in sides for part in list_unused(side, tokenizer, allow_dropped))]))


def split_sides(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row as two rows with `prompt` and `completion`. Raises `UserError` if it is none of the three forms."""
    for name in SIDES:
        if name not in row:
            single = "; rows with a completion and its label are for options.objective: kto" if "label" in row else ""
            raise UserError(f"has no {name!r}; a row needs 'chosen' and 'rejected', and 'prompt' unless both are whole chats{single}")
        if row[name] == []:
            raise UserError(f"{name} has no messages; write the answer, or remove the row")
        if row[name] == "":
            raise UserError(f"{name} is an empty text; write the answer, or remove the row")
    answers = [row[name] for name in SIDES]
    if all(isinstance(answer, str) for answer in answers):
        if not isinstance(row.get("prompt"), str) or not row["prompt"]:
            raise UserError("chosen and rejected are texts, so prompt must be a text, too, and not empty; or give all three as messages")
        return _make_sides(row, row["prompt"], answers)
    if not all(isinstance(answer, list) and all(isinstance(message, dict) for message in answer) for answer in answers):
        raise UserError("chosen and rejected must both be texts, or both lists of messages")
    if isinstance(row.get("prompt"), list):
        if not row["prompt"]:
            raise UserError("prompt has no messages; without it, chosen and rejected are whole chats")
        if any(answer[: len(row["prompt"])] == row["prompt"] for answer in answers):
            raise UserError("chosen and rejected repeat the messages of prompt; remove prompt, or the repeated messages")
        return _make_sides(row, row["prompt"], answers)
    return _split_chats(row, answers)


def _split_chats(row: dict[str, Any], answers: list[list[dict[str, Any]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two whole chats: their common beginning is the prompt, up to the first answer of the assistant that differs."""
    one, other = answers
    same = next((at for at, (first, second) in enumerate(zip(one, other, strict=False)) if first != second), min(len(one), len(other)))
    if same == len(one) == len(other):
        raise UserError("chosen and rejected are the same, so the pair has no preference; remove the row")
    if same == min(len(one), len(other)):
        raise UserError("one of chosen and rejected is the beginning of the other, so it has no answer to compare; add its answer")
    if not same or any(chat[same].get("role") != "assistant" for chat in answers):
        raise UserError("chosen and rejected must have the same messages up to an answer of the assistant; give the prompt as messages")
    prompt = row.get("prompt")
    if prompt is not None and prompt not in [message.get("content") for message in one[:same] if message.get("role") == "user"]:
        raise UserError("prompt is not a question at the beginning of both chats; remove it, or give it as messages without the chats' own")
    return _make_sides(row, one[:same], [chat[same:] for chat in answers])


def _make_completion(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("tools", "prompt", "completion") if row.get(name) is not None}


def _make_sides(row: dict[str, Any], prompt: Any, answers: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    shared = {"tools": row["tools"]} if row.get("tools") else {}
    chosen, rejected = ({**shared, "prompt": prompt, "completion": answer} for answer in answers)
    return chosen, rejected
