"""One row of data as the sequence that CSM reads, token for token as transformers' own processor lays it out.

    <|begin_of_text|> [speaker]text <|end_of_text|>     T × <|AUDIO|>     <|audio_eos|>

At the T + 1 last positions, the model reads a frame of codes instead of the token: the sum of the embeddings of its codebooks. The last
frame has `codebook_eos_token_id` in every codebook and means end of speech; generation stops at it. Such turns follow each other in a
conversation: the clips before a clip as its context (`options.context_turns`).

Source: the chat template of the released model and `CsmProcessor` of transformers, and `generator.py` in SesameAILabs/csm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Batch, Row, RowPlace, Sample
from overtone.finetune.storage.model_security import admit
from overtone.finetune.storage.strict_json import first_line
from overtone.recipes.speech.dataset_row_checks import check_codes, check_is_speech, check_text, find_speaker_name

from .model_config import CSM

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

AUDIO, AUDIO_END = "<|AUDIO|>", "<|audio_eos|>"
"""Tokens of a frame and of the end frame, by which the stock processor finds their ids."""


@dataclass(frozen=True)
class CsmTokens:
    """All ids and sizes that the layout needs, from the model's config."""

    audio: int
    """Text id of a frame's position."""
    audio_end: int
    """Text id of the end frame's position."""
    frame_end: int
    """The code of every codebook in the end frame."""
    codebooks: int
    codebook_size: int
    """Codes of the codec are from 0 to `codebook_size` - 1."""
    text_size: int
    """Number of text embeddings."""
    positions: int
    """Longest sequence that the model was made for."""

    @classmethod
    def from_config(cls, config: PretrainedConfig) -> CsmTokens:
        """From a `CsmConfig`."""
        return cls(
            audio=config.audio_token_id,
            audio_end=config.audio_eos_token_id,
            frame_end=config.codebook_eos_token_id,
            codebooks=config.num_codebooks,
            codebook_size=config.codec_config.codebook_size,
            text_size=config.text_vocab_size,
            positions=config.max_position_embeddings,
        )


@dataclass(frozen=True)
class CsmProcessing:
    """Turns a row into a sample."""

    tokenizer: PreTrainedTokenizerBase
    tokens: CsmTokens
    speakers: dict[str, int]
    """Lower-case name → number in the prompt."""
    default_speaker: str | None = None
    """Speaker of rows that name none."""
    context_loss: Literal["last", "all"] = "last"
    """`options.context_loss`."""


def load_tokenizer(model: Path, tokens: CsmTokens) -> PreTrainedTokenizerBase:
    """The text tokenizer of a model's folder. Raises `UserError` if it cannot be loaded or has other ids than the model's config."""
    from transformers import AutoTokenizer  # slow to import; most users of this module load no tokenizer

    with admit(model, CSM) as clean:
        try:
            tokenizer = AutoTokenizer.from_pretrained(clean, trust_remote_code=False)
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"{model}: the tokenizer cannot be loaded ({first_line(error)}); download the model again") from error
    for token, expected in ((AUDIO, tokens.audio), (AUDIO_END, tokens.audio_end)):
        if (found := tokenizer.convert_tokens_to_ids(token)) != expected:
            raise UserError(f"{model}: {token} is {found} in the tokenizer and {expected} in config.json; download the model again")
    if tokenizer.bos_token is None or tokenizer.eos_token is None or len(tokenizer) > tokens.text_size:
        raise UserError(
            f"{model}: the tokenizer needs a bos_token and an eos_token (it has {tokenizer.bos_token}, {tokenizer.eos_token}) and at most "
            f"{tokens.text_size} tokens (it has {len(tokenizer)}); download the model again"
        )
    return tokenizer


def format_prompt(text: str, speaker: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The turn in which speaker number `speaker` says `text`, up to the first frame."""
    return f"{tokenizer.bos_token}[{speaker}]{text}{tokenizer.eos_token}"


def tokenize_prompt(text: JsonValue, speaker: int, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the prompt. Raises `UserError` for missing text, and for text with special tokens."""
    ids: list[int] = tokenizer(format_prompt(check_text(text), speaker, tokenizer), add_special_tokens=False)["input_ids"]
    if reserved := set(tokenizer.added_tokens_encoder.values()).intersection(ids[1:-1]):
        names = tokenizer.convert_ids_to_tokens(sorted(reserved))
        raise UserError(f"text = {text!r} contains the special tokens {names}, which would break the prompt; remove them")
    return ids


def read_row(row: Row, processor: CsmProcessing) -> Sample:
    """Row with `text`, `speaker` and `audio_codes` → the tensors of `lay_out_clip`. Raises `UserError` for a bad row."""
    check_is_speech(row, "csm")
    tokens, name = processor.tokens, find_speaker_name(row, processor.default_speaker)
    if name not in processor.speakers:
        raise UserError(f"speaker {name!r} is not in the training data; it has {', '.join(processor.speakers)}")
    prompt = tokenize_prompt(row.get("text"), processor.speakers[name], processor.tokenizer)
    return check_positions(lay_out_clip(prompt, check_frames(row.get("audio_codes"), tokens), tokens), tokens)


def lay_out_clip(prompt: list[int], codes: Tensor, tokens: CsmTokens) -> Sample:
    """One clip, from the ids of its prompt and its codes [T, C] int64, with S = len(prompt) + T + 1 positions: `ids` [S]; `codes` [T+1, C],
    the frames at the last T+1 positions, of which the last is the end frame; and `turns` [1, 3] int64: positions of the prompt, frames, and
    whether the loss is computed for them."""
    ids = [*prompt, *[tokens.audio] * len(codes), tokens.audio_end]
    end = torch.full((1, tokens.codebooks), tokens.frame_end)
    turns = torch.tensor([[len(prompt), len(codes) + 1, 1]])
    return {"ids": torch.tensor(ids), "codes": torch.cat([codes, end]), "turns": turns}


def join_turns(samples: list[Sample], processor: CsmProcessing) -> Sample:
    """K clips as one conversation: their `ids`, `codes` and `turns` [K, 3] one after the other. The last clip is the row's own."""
    joined = {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}
    if processor.context_loss == "last":
        joined["turns"][:-1, 2] = 0
    return check_positions(joined, processor.tokens)


def check_positions(sample: Sample, tokens: CsmTokens) -> Sample:
    """The sample. Raises `UserError` if it is longer than the model's positions."""
    if (length := len(sample["ids"])) > tokens.positions:
        turns, (text, frames, _) = len(sample["turns"]), sample["turns"].sum(0).tolist()
        remedy = (
            "cut the clip and its text" if turns == 1 else f"{turns - 1} of its {turns} clips are context: lower options.context_seconds"
        )
        raise UserError(
            f"{frames - turns} frames and {text} tokens of text take {length} positions, and the model has {tokens.positions}; {remedy}"
        )
    return sample


def locate_clip(row: Row) -> RowPlace:
    """Return where a clip is in its recording, in seconds. Raises `UserError` for a row that does not say so."""
    source, start, end = row.get("source"), row.get("start"), row.get("end")
    times = [time for time in (start, end) if isinstance(time, int | float) and not isinstance(time, bool) and math.isfinite(time)]
    if not isinstance(source, str) or not source or len(times) < 2 or times[0] >= times[1]:
        raise UserError(
            f"source = {source!r}, start = {start!r}, end = {end!r}: options.context_turns finds the clips before a clip by its recording "
            "and its seconds in it, as `overtone voice` writes them; add them, or set --options.context_turns 0"
        )
    return RowPlace(source, *times)


def make_dummy_sample(positions: int, tokens: CsmTokens) -> Sample:
    """A clip of `positions` positions (at least 3) for memory estimates: one token of text, and otherwise frames, which cost most."""
    return lay_out_clip([0], torch.zeros(positions - 2, tokens.codebooks, dtype=torch.int64), tokens)


def collate(samples: list[Sample]) -> Batch:
    """Pad on the right to [B, S]. Attention looks only to the left, so no real position sees padding.

    `ids` [B, S]; `codes` [N, C], the frames of all samples; `frame_rows` [N], their flat positions b·S + s; `speech` and `ends`, indices
    into the N frames of those with a loss: frames of speech, and end frames. The host knows all sizes, so it never waits for the device.
    """
    ids = pad_sequence([sample["ids"] for sample in samples], batch_first=True)
    rows, speech, ends, frame = list[Tensor](), list[Tensor](), list[int](), 0
    for index, sample in enumerate(samples):
        position = index * ids.shape[1]
        for text, frames, trained in sample["turns"].tolist():
            rows.append(torch.arange(position + text, position + text + frames))
            if trained:
                speech.append(torch.arange(frame, frame + frames - 1))
                ends.append(frame + frames - 1)
            position, frame = position + text + frames, frame + frames
    tensors = {
        "ids": ids,
        "codes": torch.cat([sample["codes"] for sample in samples]),
        "frame_rows": torch.cat(rows),
        "speech": torch.cat(speech),
        "ends": torch.tensor(ends),
    }
    first = len(tensors["speech"]) + len(ends)
    others = first * (tensors["codes"].shape[1] - 1)
    return Batch(tensors, targets={"backbone": first, "depth": others, "backbone_accuracy": first, "depth_accuracy": others})


def check_frames(codes: JsonValue, tokens: CsmTokens) -> Tensor:
    """`audio_codes` as int64 [T, C], T ≥ 1. Raises `UserError` with the place of a bad code, and for a frame that would end the speech."""
    checked = check_codes(codes, tokens.codebooks, tokens.codebook_size)
    # The stock generation compares all codebooks but the last.
    if ends := (checked[:, :-1] == tokens.frame_end).all(1).nonzero().flatten().tolist():
        raise UserError(
            f"audio_codes, frame {ends[0]} has code {tokens.frame_end} in every codebook but perhaps the last, which means end of speech "
            "to this model; remove the row, or cut its clip before this frame"
        )
    return checked
