"""`overtone generate` of this recipe: rewards or classes of rows, by an exported model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from torch import Tensor

from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.data.jsonl_rows import visit_rows
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_content, print_diagnostic
from overtone.recipes.class_labels import find_label, read_label
from overtone.recipes.language.options import Droppable
from overtone.recipes.language.preferences.preference_tokenization import SIDES, split_sides
from overtone.recipes.language.sequence_scorer import LoadedScorer, check_length, load_scorer, score_sequences, tokenize_whole

from .cli_arguments import make_generate_parser

AT_ONCE = 1024
"""Rows that are scored and written together."""
REWARD, CLASS, PROBABILITIES = "reward", "class", "probabilities"
"""Keys that are added to a row; of a pair `chosen_reward` and `rejected_reward`."""


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for rows that cannot be scored, before the first is."""
    arguments = parse_arguments(make_generate_parser(), argv)
    if unknown := [name for name in arguments.allow_dropped if name not in get_args(Droppable)]:
        raise UserError(f"--allow-dropped {unknown[0]}: expected one of {', '.join(get_args(Droppable))}")
    if arguments.out is not None and arguments.out.exists():
        raise UserError(f"--out {arguments.out} exists; remove it, or give another name")
    rows = [("--text", {"text": arguments.text})] if arguments.rows is None else read_rows(arguments.rows)
    scorer = load_scorer(folder)
    tokenized = [tokenize_sides(row, place, scorer, arguments.allow_dropped) for place, row in rows]
    described = score_all([row for _, row in rows], tokenized, scorer)
    if arguments.out is None:
        for row in described:
            print_content(json.dumps(row, ensure_ascii=False))
    else:
        files.make_folder(arguments.out.parent)
        files.write_jsonl(arguments.out, described)
    return 0


def read_rows(path: Path) -> list[tuple[str, Row]]:
    """Place and content of each line. Raises `UserError` for a file that cannot be read, and for lines that are no JSON object."""
    found: list[tuple[str, Row]] = []
    visit_rows(path, lambda line, row: found.append((f"{path}:{line}", row)), "give a JSONL file", "--rows")
    return found


def tokenize_sides(row: Row, place: str, scorer: LoadedScorer, allow_dropped: Sequence[str]) -> list[list[int]]:
    """The token ids of a row, or of both sides of a pair. Raises `UserError` with its place for a row that cannot be scored."""
    is_pair = any(side in row for side in SIDES)
    try:
        if is_pair and scorer.labels:
            raise UserError("is a pair of answers, and the model is a classifier; give rows with a text or messages")
        if taken := sorted(row.keys() & {REWARD, CLASS, PROBABILITIES, *(f"{side}_{REWARD}" for side in SIDES)}):
            raise UserError(f"has the key {taken[0]}, which the result would replace; rename it")
        if scorer.labels and row.get("label") is not None:
            find_label(row, scorer.labels, "the model")
        sides = split_sides(row) if is_pair else (row,)
        return [check_length(tokenize_whole(side, scorer.tokenizer, scorer.pad, allow_dropped), scorer) for side in sides]
    except UserError as error:
        problem = str(error).replace("--options.allow_dropped", "--allow-dropped")
        raise UserError(f"{place}: {problem}") from None


def score_all(rows: list[Row], tokenized: list[list[list[int]]], scorer: LoadedScorer) -> Iterator[Row]:
    """The rows with what the model says of them; at the end, how often it agrees with the rows is printed to standard error."""
    right = counted = 0
    for start in range(0, len(rows), AT_ONCE):
        part = tokenized[start : start + AT_ONCE]
        values = score_sequences(scorer, [ids for sides in part for ids in sides]).split([len(sides) for sides in part])
        for row, own in zip(rows[start : start + AT_ONCE], values, strict=True):
            found = describe_scores(own, scorer)
            if len(own) == 2 or (CLASS in found and row.get("label") is not None):
                counted += 1
                right += int(own[0, 0] > own[1, 0]) if len(own) == 2 else int(found[CLASS] == read_label(row))
            yield {**row, **found}
    if counted:
        what = "have the label of the row" if scorer.labels else "are pairs whose chosen answer has the higher reward"
        print_diagnostic(f"{right:,} of {counted:,} ({right / counted:.1%}) {what}")


def describe_scores(values: Tensor, scorer: LoadedScorer) -> Row:
    """Values [1, outputs] of a row, or [2, 1] of a pair, as the keys that are added to the row."""
    if not scorer.labels:
        names = [REWARD] if len(values) == 1 else [f"{side}_{REWARD}" for side in SIDES]
        return dict(zip(names, values[:, 0].tolist(), strict=True))
    shares = values[0].softmax(0).tolist()
    return {CLASS: scorer.labels[int(values[0].argmax())], PROBABILITIES: dict(zip(scorer.labels, shares, strict=True))}
