"""Checks of one row of a speech dataset that all speech recipes share: not a chat, text, audio codes and the speaker's name."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row

CHAT_KEYS = frozenset({"messages", "prompt", "completion", "conversations"})
"""Keys of rows for language models."""


def check_is_speech(row: Row, recipe: str) -> None:
    """Raises `UserError` for a row of a chat, which belongs to another recipe than `recipe`."""
    if found := sorted(CHAT_KEYS & row.keys()):
        raise UserError(
            f"the row is a chat (it has {', '.join(found)}), and {recipe} trains on speech; use --recipe llm_sft for chats, or give the "
            "train.jsonl that `overtone voice` and `codes` made"
        )


def check_text(text: JsonValue) -> str:
    """The spoken words of a row. Raises `UserError` if there are none."""
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"text = {text!r}: expected the spoken words; add them or remove the row")
    return text


def check_codes(codes: JsonValue, codebooks: int, codebook_size: int, key: str = "audio_codes") -> Tensor:
    """The codes of a row as int64 [T, codebooks], T ≥ 1, from 0 to `codebook_size` - 1. `key`: where the row has them. Raises `UserError`
    with the place of a bad code."""
    if codes is None:
        raise UserError(f"the row has no {key}; run `overtone codes FOLDER --model MODEL` on its folder first")
    if not isinstance(codes, list) or not codes:
        raise UserError(f"{key} = {str(codes)[:40]}: expected a list of at least one frame; create the codes again")
    frames = list[list[JsonValue]]()
    for frame in codes:
        if not isinstance(frame, list) or len(frame) != codebooks:
            raise UserError(
                f"{key}, frame {len(frames)}: {str(frame)[:80]} is not a list of {codebooks} codes; create the codes again with this model"
            )
        frames.append(frame)
    if not all(type(code) is int and abs(code) < 2**63 for frame in frames for code in frame):
        raise UserError(f"{key}: codes must be integers; create the codes again with this model")
    array = np.asarray(codes)
    outside = np.argwhere((array < 0) | (array >= codebook_size))
    if len(outside):
        t, book = outside[0]
        raise UserError(
            f"{key}, frame {t}, codebook {book}: {array[t, book]} is outside of 0 … {codebook_size - 1}; the codes come from "
            "another model: create them again with the model that you train"
        )
    return torch.from_numpy(array.astype(np.int64))


def find_speaker_name(row: Row, default: str | None) -> str:
    """The row's speaker, or `default`, in lower case, as generation looks it up. Raises `UserError` if there is none."""
    name = row.get("speaker") or default
    if not isinstance(name, str) or not name.strip():
        raise UserError('the row has no speaker; add "speaker" to it, or set --options.speaker NAME for all rows')
    return manifest.parse_speaker(name)
