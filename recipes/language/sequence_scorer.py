"""Scores texts and chats with a folder that AutoModelForSequenceClassification loads: the reward of a reward model, or the outputs of a
classifier. `load_scorer` once, then `score_rows`, is all that a program needs.

torch and transformers are imported inside of functions where `--help` would wait for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from overtone.finetune.errors import UserError
from overtone.finetune.hardware import cudnn_sdpa
from overtone.finetune.recipe import Row
from overtone.finetune.storage.model_classes import list_causal_tokenizers
from overtone.finetune.storage.model_security import Kind, admit, require_safetensors, require_weights
from overtone.recipes import transformers_meta_models
from overtone.recipes.class_labels import read_base_labels
from overtone.recipes.language.modeling.causal_model import COMPOSITES
from overtone.recipes.language.tokenization.sft_tokenization import tokenize_row
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.transformers_release import name_release

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_POSITIONS = 16_384
"""Positions of a batch, padding included; a longer sequence is a batch of its own."""


@dataclass(frozen=True)
class LoadedScorer:
    """A model of transformers for sequence classification, and its tokenizer."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...]
    """Names of the classes in the order of the outputs; empty for a reward model, whose only output is the reward."""
    pad: int
    """Token of the padding."""
    positions: int | None
    """Most positions of a sequence; None: not stated."""


def sequence_classifier() -> Kind:
    """The kind of model folder that is accepted: a decoder for which transformers has a class for sequence classification."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    types = (frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & frozenset(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)) - COMPOSITES
    name = f"a causal language model for which {name_release()} has a sequence classifier"
    return Kind(name, types, transformers_meta_models.is_part, {"tokenizer_class": list_causal_tokenizers(types)})


def find_pad(tokenizer: PreTrainedTokenizerBase, base: Path) -> str:
    """The token of the padding: the tokenizer's own, or its end-of-text token. Raises `UserError` without either."""
    pad: str | None = tokenizer.pad_token or tokenizer.eos_token
    if pad is None:
        raise UserError(f"{base}: its tokenizer has neither a pad_token nor an eos_token; set pad_token in tokenizer_config.json")
    return pad


def tokenize_whole(row: Row, tokenizer: PreTrainedTokenizerBase, pad: int, allow_dropped: Sequence[str] = ()) -> list[int]:
    """The token ids of a row with `text`, with `messages`, or with `prompt` and `completion`, up to the last one that is not `pad`: where
    transformers reads the value. A text has the tokens that the tokenizer adds by itself, a completion ends with the end-of-text token.

    Raises `UserError` for a malformed row, for half of a character (a lone surrogate), which no tokenizer reads, and for content that the
    chat template drops unless `allow_dropped` names it.
    """
    check_characters(row)
    if "text" in row:
        if "messages" in row or "prompt" in row:
            raise UserError("the row has text and messages or prompt; remove one of them")
        if not isinstance(row["text"], str):
            raise UserError(f'"text" must be a text, found {row["text"]!r:.60}')
        ids: list[int] = tokenizer(row["text"])["input_ids"]
    else:
        ids, _ = tokenize_row(row, tokenizer, "everything", allow_dropped)
    end = next((number for number in range(len(ids), 0, -1) if ids[number - 1] != pad), 0)
    if not end:
        raise UserError("the row has no tokens besides padding, so there is no token to read its value at; remove the row")
    return ids[:end]


def check_characters(row: Row) -> None:
    """Raises `UserError` for half of a character in a text of the row. Lines of JSONL were checked; arguments and rows of a program not."""
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise UserError(f"the row contains half of a character (the lone surrogate {half}); give complete characters in UTF-8") from None


def load_scorer(folder: Path) -> LoadedScorer:
    """Load a folder that AutoModelForSequenceClassification reads: in its own dtype on a GPU, with a head in fp32; in fp32 on a CPU. Raises
    `UserError` if that fails, and for outputs that are not a reward or classes of which one is right."""
    import transformers

    transformers.logging.set_verbosity_error()
    require_safetensors(folder, "--model")
    tokenizer = load_tokenizer(folder, None)
    cudnn_sdpa.disable_cudnn()
    placement = {"device_map": "auto", "dtype": "auto"} if torch.cuda.is_available() else {"dtype": torch.float32}
    with admit(folder, sequence_classifier()) as clean, transformers_meta_models.explain_loading(folder):
        model, loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
            clean, trust_remote_code=False, use_safetensors=True, output_loading_info=True, **placement
        )
        require_weights(loaded["missing_keys"], ())
    config = model.config
    pad = config.get_text_config().pad_token_id
    if pad is None:
        raise UserError(
            f"--model {folder}: config.json has no pad_token_id, so sequences cannot be scored together; export the model again"
        )
    labels = tuple(read_base_labels(config, folder)) if config.num_labels > 1 else ()
    if config.problem_type == "multi_label_classification" or (labels and config.problem_type == "regression"):
        raise UserError(
            f"--model {folder}: config.json has problem_type {config.problem_type} with {config.num_labels:,} outputs, and only rewards "
            "and classes of which one is right can be scored; give a reward model or a classifier of one label for a text"
        )
    head = getattr(model, "score", None)
    if isinstance(head, nn.Linear):  # computes in fp32, as in the training: in bf16, different texts would get the same reward
        head.float().register_forward_pre_hook(lambda _, given: (given[0].float(),))
    return LoadedScorer(model.eval(), tokenizer, labels, pad, getattr(config.get_text_config(), "max_position_embeddings", None))


def score_rows(scorer: LoadedScorer, rows: Sequence[Row], allow_dropped: Sequence[str] = ()) -> Tensor:
    """Values [N, outputs] of N rows in the forms of `tokenize_whole`, fp32 on the CPU: rewards, or logits of the classes. Raises
    `UserError` for a row that cannot be scored, and names it by its number."""
    sequences = []
    for number, row in enumerate(rows, 1):
        try:
            sequences.append(check_length(tokenize_whole(row, scorer.tokenizer, scorer.pad, allow_dropped), scorer))
        except UserError as error:
            raise UserError(f"row {number}: {error}") from None
    return score_sequences(scorer, sequences)


def check_length(ids: list[int], scorer: LoadedScorer) -> list[int]:
    """The same ids. Raises `UserError` for more of them than the model has positions."""
    if scorer.positions is not None and len(ids) > scorer.positions:
        raise UserError(f"{len(ids):,} tokens, and the model has {scorer.positions:,} positions; shorten the text")
    return ids


@torch.inference_mode()
def score_sequences(scorer: LoadedScorer, sequences: Sequence[list[int]]) -> Tensor:
    """Values [N, outputs] of N sequences of token ids, of which none ends with padding; fp32 on the CPU."""
    values = torch.empty(len(sequences), scorer.model.config.num_labels)
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    while order:
        longest = len(sequences[order[-1]])
        count = max(1, MOST_POSITIONS // longest)
        order, batch = order[:-count], order[-count:]
        ids = pad_sequence([torch.tensor(sequences[number]) for number in batch], batch_first=True, padding_value=scorer.pad)
        lengths = torch.tensor([len(sequences[number]) for number in batch])
        mask = torch.arange(longest) < lengths[:, None]
        device = scorer.model.device
        values[batch] = scorer.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float().cpu()
    return values
