"""One row of data as the tokens that the model reads, identical to those of generation.

For Orpheus, with the names of `families.ORPHEUS` as ids of the released models:

    128259, the text with its beginning-of-text token, 128009, 128260, 128261, 128257    the prompt
    128266 + k · 4096 + code, for k = 0 … 6, of each frame                                the speech
    128258                                                                                end of speech
    128262

Every frame of the codes is written. The notebook with which Orpheus' authors prepare data drops a frame whose first code is that of the
frame before it, so sounds that are held are shorter there than in the recordings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row, Sample
from overtone.recipes.speech.dataset_row_checks import check_codes, check_is_speech, check_text, find_speaker_name

from ..families import Family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SpeechTokenIds:
    """The tokens of a family as ids of one model's tokenizer."""

    before_text: tuple[int, ...]
    after_text: tuple[int, ...]
    first_code: int
    """Id of code 0 of slot 0; the codes of all slots follow each other."""
    codebook_size: int
    slots: tuple[int, ...]
    """Codebook of each slot, as in `Family`."""
    end_of_speech: int
    after_speech: tuple[int, ...]

    @property
    def codes(self) -> range:
        """The ids of all codes."""
        return range(self.first_code, self.first_code + len(self.slots) * self.codebook_size)

    @property
    def reserved(self) -> frozenset[int]:
        """Ids that must not be in a text."""
        return frozenset({*self.before_text, *self.after_text, self.end_of_speech, *self.after_speech, *self.codes})

    def encode_frames(self, codes: Tensor) -> Tensor:
        """Codes [T, codebooks] in the codec's order → token ids [T · slots]."""
        offsets = self.first_code + torch.arange(len(self.slots)) * self.codebook_size
        return (codes[:, list(self.slots)] + offsets).flatten()

    def decode_frames(self, tokens: Tensor) -> Tensor:
        """The inverse: token ids [T · slots] → codes [T, codebooks]."""
        offsets = self.first_code + torch.arange(len(self.slots)) * self.codebook_size
        return (tokens.view(-1, len(self.slots)) - offsets)[:, np.argsort(self.slots).tolist()]


@dataclass(frozen=True)
class SpeechTextProcessor:
    """Turns a row into a sample."""

    tokenizer: PreTrainedTokenizerBase
    family: Family
    ids: SpeechTokenIds
    positions: int
    """Longest sequence that the model was made for."""
    default_speaker: str | None = None
    """Speaker of rows that name none."""
    supervise: str = "speech"


def find_token_ids(tokenizer: PreTrainedTokenizerBase, family: Family, model: Path) -> SpeechTokenIds:
    """The family's tokens in a tokenizer. Raises `UserError` if one is missing, or the codes are not next to each other."""
    vocabulary = tokenizer.get_vocab()
    if missing := family.find_missing(vocabulary):
        raise UserError(
            f"{model}: its tokenizer lacks {len(missing):,} tokens of {family.name} (the first is {missing[0]}); use "
            f"{' or '.join(family.models)}, or a model trained from one, or set options.family to the family of this one"
        )
    names = list(family.name_codes())
    first = vocabulary[names[0]]
    wrong = next((name for number, name in enumerate(names) if vocabulary[name] != first + number), None)
    if wrong is not None:
        raise UserError(
            f"{model}: the id of {wrong} does not follow that of the code before it; use the tokenizer published with the weights"
        )

    def ids(tokens: list[str]) -> tuple[int, ...]:
        return tuple(vocabulary[token] for token in tokens)

    (end,) = ids([family.end_of_speech])
    slots = tuple(family.slots)
    return SpeechTokenIds(
        ids(family.before_text), ids(family.after_text), first, family.codebook_size, slots, end, ids(family.after_speech)
    )


def tokenize_prompt(text: JsonValue, speaker: str, processor: SpeechTextProcessor) -> list[int]:
    """The ids of a prompt, up to the place where speech begins. Raises `UserError` for missing text, and text or speaker with
    control tokens."""
    prefix, ids = processor.family.voice_prefix.replace("{speaker}", speaker), processor.ids
    words: list[int] = processor.tokenizer(prefix + check_text(text))["input_ids"]
    if reserved := sorted(ids.reserved.intersection(words)):
        names = processor.tokenizer.convert_ids_to_tokens(reserved)
        place, given = ("speaker", speaker) if any(name in speaker for name in names) else ("text", text)
        raise UserError(f"{place} = {given!r} contains the control tokens {names}, which would end the prompt early; remove them")
    return [*ids.before_text, *words, *ids.after_text]


def read_row(row: Row, processor: SpeechTextProcessor) -> Sample:
    """`ids` [S], and `supervised` [S], true for tokens that are learned. Raises `UserError` for a bad row."""
    check_is_speech(row, "codec_lm")
    prompt = tokenize_prompt(row.get("text"), find_speaker_name(row, processor.default_speaker), processor)
    codes, ids = check_frames(row.get("audio_codes"), processor.family), processor.ids
    tokens = torch.tensor([*prompt, *ids.encode_frames(codes).tolist(), ids.end_of_speech, *ids.after_speech])
    if len(tokens) > processor.positions:
        raise UserError(
            f"{len(codes)} frames and {len(prompt)} tokens of the prompt take {len(tokens):,} positions, and the model has "
            f"{processor.positions:,}; cut the clip and its text"
        )
    supervised = torch.ones(len(tokens), dtype=torch.bool)
    if processor.supervise == "speech":  # the tokens that generation chooses
        supervised[: len(prompt)] = False
        supervised[len(tokens) - len(ids.after_speech) :] = False
    return {"ids": tokens, "supervised": supervised}


def check_frames(codes: JsonValue, family: Family) -> Tensor:
    """`audio_codes` as int64 [T, codebooks], T ≥ 1. Raises `UserError` with the place of a bad code, and the codec that is needed."""
    try:
        return check_codes(codes, len(family.slots), family.codebook_size)
    except UserError as error:
        command = overtone_command("codes", "FOLDER", "--model", family.codec)
        raise UserError(f"{error} ({family.name} reads the codes of {family.codec}: {command})") from None
