"""A row with a pair of clips as a sample, and samples as a batch.

A pair is stored as one sample: each tensor of `sequence_layout.lay_out_clip` of both clips end to end, the chosen one first; `chosen` [],
the positions of the first; and `speaker` [].
"""

from __future__ import annotations

import torch
from pydantic import JsonValue
from torch import Tensor

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Batch, Row, Sample
from overtone.recipes.preferences.batch_targets import count_targets, place_answers
from overtone.recipes.qwen3_tts.model import sequence_layout
from overtone.recipes.qwen3_tts.model.clip_scores import collate_clips
from overtone.recipes.qwen3_tts.model.sequence_layout import IGNORE, ROLE, SpeechProcessor, TokenIds
from overtone.recipes.speech.dataset_row_checks import check_codes, check_is_speech

SIDES = ("chosen", "rejected")
WHOLE = ("chosen", "speaker")
"""Tensors of a sample that do not belong to one of its clips."""


def read_row(row: Row, processor: SpeechProcessor) -> Sample:
    """Row with `text`, `speaker`, `chosen_codes`, `rejected_codes`, and optionally `language`, `chosen_ended` and `rejected_ended` → the
    tensors of a pair. Raises `UserError` for a bad row."""
    ids = processor.ids
    check_is_speech(row, "voice_dpo")
    name = sequence_layout.find_language(row, ids)
    text, speaker = sequence_layout.tokenize_text(row.get("text"), processor), sequence_layout.find_speaker_index(row, processor)
    language = None if name is None else ids.languages[name]
    clips = [lay_out_side(text, read_codes(row, side, ids), read_end(row, side), speaker, language, ids) for side in SIDES]
    if torch.equal(clips[0]["codes"], clips[1]["codes"]):
        raise UserError("chosen_codes and rejected_codes are the same, so there is nothing to prefer; remove the row")
    return join_sides(*clips)


def read_codes(row: Row, side: str, ids: TokenIds) -> Tensor:
    """The codes [T, codebooks] of a side. Raises `UserError` that names the key."""
    name = f"{side}_codes"
    if row.get(name) is None:
        raise UserError(f"the row has no {name}; `overtone pairs` makes rows with pairs of clips")
    return check_codes(row[name], ids.codebooks, ids.codebook_size, name)


def read_end(row: Row, side: str) -> bool:
    """Return whether the model ended the speech of a side. Raises `UserError` for a value that is not true or false."""
    value: JsonValue = row.get(f"{side}_ended", True)
    if not isinstance(value, bool):
        raise UserError(f"{side}_ended = {value!r}: expected true, or false for speech that was cut off at the time limit")
    return value


def lay_out_side(text: list[int], codes: Tensor, ended: bool, speaker: int, language: int | None, ids: TokenIds) -> Sample:
    """The tensors of one clip. Speech that was cut off has no end of speech to predict. Raises `UserError` for more positions than the
    model has."""
    clip = sequence_layout.lay_out_clip(text, codes, speaker, language, ids)
    if (length := len(clip["text"])) > ids.positions:
        raise UserError(
            f"{len(codes)} frames and {len(text) - ROLE} tokens of text take {length} positions, and the model has {ids.positions}; "
            "remove the pair"
        )
    if not ended:
        clip["labels"][-1] = IGNORE
    return clip


def join_sides(chosen: Sample, rejected: Sample) -> Sample:
    """The sample of a pair."""
    joined = {name: torch.cat([chosen[name], rejected[name]]) for name in chosen if name not in WHOLE}
    return {**joined, "speaker": chosen["speaker"], "chosen": torch.tensor(len(chosen["text"]))}


def split_sides(sample: Sample) -> tuple[Sample, Sample]:
    """The two clips of a pair, as samples of `sequence_layout`."""
    at = int(sample["chosen"])
    own = {name: value for name, value in sample.items() if name not in WHOLE}
    first, second = ({name: value[part] for name, value in own.items()} for part in (slice(at), slice(at, None)))
    return {**first, "speaker": sample["speaker"]}, {**second, "speaker": sample["speaker"]}


def collate(samples: list[Sample]) -> Batch:
    """A batch with a clip in each row, padded on the right: the tensors of `collate_clips`; and `answers` as `batch_targets` describes it,
    each answer the tokens of a clip."""
    batch, tokens = collate_clips([clip for sample in samples for clip in split_sides(sample)])
    return Batch({**batch.tensors, "answers": place_answers(tokens)}, count_targets(len(samples), sum(tokens)))


def make_dummy_pair(positions: int, ids: TokenIds) -> Sample:
    """A pair of so many positions (at least 26) for memory estimates."""
    return join_sides(*(sequence_layout.make_dummy_sample(part, ids) for part in (positions // 2, positions - positions // 2)))
