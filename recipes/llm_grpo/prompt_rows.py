"""Reads a row as a prompt to answer, with everything that its rewards need.

    {"prompt": "…", "answer": "…"}                        a text, without a template
    {"prompt": [messages…], "answer": …, "tools": […]}    a chat; `tools` is optional
    {"messages": [messages…], "answer": …}                the same

`answer` is what the rewards exact_match and numeric_answer compare with; `schema` is for json_schema. Functions get the whole row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row, Sample
from overtone.finetune.storage import strict_json
from overtone.recipes.language.answer_generation import make_chat_row, tokenize_prompt
from overtone.recipes.language.chat_model_loading import ChatProcessor
from overtone.recipes.language.tokenization.sft_tokenization import list_unused as list_unused_parts
from overtone.recipes.llm_grpo.options import Options
from overtone.recipes.llm_grpo.rewards.answer_checks import ANSWER, find_row_problem

READ = ("prompt", "messages", "tools", "source")  # `overtone text` writes the place of each row as its source


@dataclass(frozen=True)
class PromptProcessor(ChatProcessor[Options]):
    """The tokenizer and the options, as for chats."""

    positions: int | None
    """The model's maximum number of tokens; None if its config has none."""


def read(row: Row, processor: PromptProcessor, _: Path) -> Sample:
    """Return `ids` [P], the prompt; `row` [n] uint8, the row as JSON; and `positions` [], what its answers can occupy at most. Raises
    `UserError` for a row that cannot be answered or rewarded."""
    options = processor.options
    ids = tokenize_prompt(find_prompt(row), processor.tokenizer, options.allow_dropped)
    longest = options.max_new_tokens + 1  # with the end of the turn
    if not ids:
        raise UserError("the prompt has no tokens; this tokenizer drops all of its characters")
    if processor.positions is not None and len(ids) + longest > processor.positions:
        raise UserError(
            f"the prompt has {len(ids):,} tokens, and with options.max_new_tokens: {options.max_new_tokens:,} more than the model's "
            f"{processor.positions:,} positions; shorten one of them"
        )
    own_schema = options.rewards.json_schema is not None and options.rewards.json_schema.file is None
    exact, numeric = options.rewards.exact_match is not None, options.rewards.numeric_answer is not None
    if problem := find_row_problem(row, exact, numeric, own_schema):
        raise UserError(problem)
    content = torch.frombuffer(bytearray(json.dumps(row).encode()), dtype=torch.uint8)
    return {"ids": torch.tensor(ids), "row": content, "positions": torch.tensor(options.group * (len(ids) + longest))}


def find_prompt(row: Row) -> dict[str, Any]:
    """Return the prompt of a row as `tokenize_prompt` takes it. Raises `UserError`."""
    if (prompt := row.get("prompt")) is None and "messages" not in row:
        raise UserError("has neither 'prompt' nor 'messages'; a row needs one of them, and what its rewards compare with, such as 'answer'")
    if prompt is not None and row.get("messages") is not None:
        raise UserError("has both 'prompt' and 'messages'; remove one of them")
    if isinstance(prompt, str):
        if row.get("tools"):
            raise UserError("has 'tools', but its prompt is a text; give the prompt as messages")
        return {"prompt": prompt}
    return make_chat_row({"messages": row.get("messages") if prompt is None else prompt, "tools": row.get("tools")}, None)


def list_unused(row: Row, processor: PromptProcessor) -> list[str]:
    """Return what of a row is not used, for counts: keys that nothing reads, and what the chat template may drop and does."""
    rewards, prompt = processor.options.rewards, find_prompt(row)
    unused = list_unused_parts(prompt, processor.tokenizer, processor.options.allow_dropped) if "messages" in prompt else []
    if rewards.functions is not None:
        return unused
    compared = rewards.exact_match or rewards.numeric_answer or rewards.judge
    known = {*READ, *([ANSWER] if compared else []), *(["schema"] if rewards.json_schema and rewards.json_schema.file is None else [])}
    return [*unused, *(f"key {key}" for key, value in row.items() if key not in known and value not in (None, "", []))]


def decode_row(sample: Sample) -> Row:
    """Return the row of a sample that `read` has made."""
    return strict_json.loads_object(bytes(sample["row"].tolist()))


def measure_length(sample: Sample) -> int:
    """Return the positions that all answers to a prompt can occupy."""
    return int(sample["positions"])
