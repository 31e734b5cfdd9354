"""Reads a row as one sequence with a label, or as the two sequences of a pair of answers, of which one is better."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from overtone.data_prep.chats.chat_messages import list_unread_row_keys
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row, Sample
from overtone.recipes.class_labels import find_label
from overtone.recipes.language import loss_mask_preview
from overtone.recipes.language.chat_model_loading import ChatProcessor
from overtone.recipes.language.preferences.preference_tokenization import PAIR, SIDES, list_unused_parts, split_sides
from overtone.recipes.language.sequence_scorer import tokenize_whole
from overtone.recipes.language.tokenization.sft_tokenization import list_unused

from .options import Options

LARGEST_MARGIN = 1000.0
"""Larger ones are no rewards, but a mistake such as a score of another scale; the loss of a pair grows with the margin."""


@dataclass(frozen=True)
class ScoringProcessor(ChatProcessor[Options]):
    """The tokenizer and the options, as for chats."""

    labels: tuple[str, ...]
    """Names of the classes; empty for a reward model."""
    pad: int
    """Token of the padding, which transformers skips when it looks for the last token of a sequence."""


def read(row: Row, processor: ScoringProcessor, _: Path) -> Sample:
    """The sample of a pair has `ids` [S], both sides end to end; `chosen` [], the length of the first side; and `margin` []. That of a row
    with a label has `ids` [S]; `label` []; and `classes` [], their number. Raises `UserError` for a row that cannot be learned."""
    if processor.labels:
        label = find_label(row, processor.labels)
        ids = tokenize_whole(row, processor.tokenizer, processor.pad, processor.options.allow_dropped)
        return {"ids": torch.tensor(ids), "label": torch.tensor(label), "classes": torch.tensor(len(processor.labels))}
    if "label" in row and not any(side in row for side in SIDES):
        raise UserError("has a label, and neither chosen nor rejected; for a classifier set options.objective: classification")
    margin, sides = read_margin(row), list[list[int]]()
    for name, side in zip(SIDES, split_sides(row), strict=True):
        try:
            sides.append(tokenize_whole(side, processor.tokenizer, processor.pad, processor.options.allow_dropped))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    if sides[0] == sides[1]:
        raise UserError("chosen and rejected have the same tokens, so the pair has no preference; remove the row")
    return {"ids": torch.tensor([*sides[0], *sides[1]]), "chosen": torch.tensor(len(sides[0])), "margin": torch.tensor(margin)}


def read_margin(row: Row) -> float:
    """By how much the chosen answer is better, in rewards; 0 if the row does not say. Raises `UserError` unless it is a number."""
    margin = row.get("margin")
    if margin is None:
        return 0.0
    # NaN is in no range, and an int of more than 308 digits cannot become a float.
    if not isinstance(margin, int | float) or isinstance(margin, bool) or not abs(margin) <= LARGEST_MARGIN:
        raise UserError(f'"margin" must be a number between -{LARGEST_MARGIN:g} and {LARGEST_MARGIN:g}, found {margin!r:.40}')
    return float(margin)


def split_sample(sample: Sample) -> list[Sample]:
    """The sequences of a sample as samples of llm_sft, of which no token is a target."""
    sides = [sample["ids"]] if "label" in sample else [*sample["ids"].tensor_split([int(sample["chosen"])])]
    return [{"ids": ids, "supervised": torch.zeros(len(ids), dtype=torch.bool)} for ids in sides]


def list_unused_keys(row: Row, processor: ScoringProcessor) -> list[str]:
    """Return what of the row is not used, for counts."""
    allowed = processor.options.allow_dropped
    if not processor.labels:
        return list_unused_parts(row, processor.tokenizer, allowed, (*PAIR, "margin"))
    content = {key: value for key, value in row.items() if key != "label"}
    if "text" in row:
        return [f"key {key}" for key in list_unread_row_keys(content, ("text",))]
    return list_unused(content, processor.tokenizer, allowed)


def show(sample: Sample, processor: ScoringProcessor) -> str:
    """Both sides, or the text and its label, for a terminal; the last token, at which the value is read, stands out."""
    shown = []
    for each in split_sample(sample):
        last = torch.arange(len(each["ids"])) == len(each["ids"]) - 1
        text, _, _ = loss_mask_preview.render_sample({**each, "supervised": last}, processor).rpartition("\n")
        shown.append(f"{text}\n({len(last):,} tokens; the value is read at the last one)")
    if processor.labels:
        return f"label {processor.labels[int(sample['label'])]!r}:\n{shown[0]}"
    return f"chosen:\n{shown[0]}\nrejected:\n{shown[1]}"
