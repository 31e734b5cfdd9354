"""Whisper of transformers, with a forward that returns sums over tokens. Parameters keep the names of the weights' files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from transformers import WhisperForConditionalGeneration

from overtone.data_prep.transcription.whisper_conversion import KIND, VOCABULARIES
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.recipe import BASE_STATES
from overtone.recipes import transformers_meta_models

from ..options import Options
from .sequence_layout import FRAMES, RecognizerProcessor

HEAD = "proj_out"
"""The output head, whose weight is that of the decoder's embedding."""
ENCODER = "model.encoder."
SINUSOIDS = f"{ENCODER}embed_positions.weight"
"""Fixed positions, which stock classes do not train either."""
MELS = (80, 128)


class SpeechRecognizer(nn.Module):
    """Encoder, decoder and output head of a stock model. They are called directly, because its own forward would compute full logits."""

    def __init__(self, whole: Any) -> None:
        """`whole`: a Whisper of transformers."""
        super().__init__()
        self.model = whole.model
        self.proj_out = LossHead(whole.proj_out)

    def forward(self, tensors: dict[str, Tensor], result: Literal["sums", "states"] = "sums") -> tuple[Tensor, ...] | Tensor:
        """Sums over all targets: negative log-likelihood in nats, and correct predictions; both fp32 scalars. With `BASE_STATES` in
        `tensors`, also the distance to the base. As `result: states`, only the states [M, H] from which the targets are predicted.

        `tensors`: `features` [B, mels, 3000]; `ids` [B, S]; `targets` [B, S], the next token or a negative number; `supervised` [M], the
        indices of the flattened positions with a target. Padding needs no mask: it is on the right, where no earlier position attends.
        """
        supervised = tensors["supervised"]
        # A parameter's type at this moment: the compute type for those of the root; other units cast their own inputs.
        features = tensors["features"].to(next(self.parameters()).dtype)
        hidden = self.model(input_features=features, decoder_input_ids=tensors["ids"], use_cache=False).last_hidden_state
        states = hidden.flatten(0, 1).index_select(0, supervised)
        if result == "states":
            return states
        sums: tuple[Tensor, ...] = self.proj_out(states, tensors["targets"].flatten().index_select(0, supervised), tensors.get(BASE_STATES))
        return sums


def read_config(base: Path) -> Any:
    """The base's config. Raises `UserError` for anything but a Whisper with OpenAI's vocabulary."""
    config = transformers_meta_models.read_config(base, KIND)
    if config.vocab_size not in VOCABULARIES:
        raise UserError(f"{base}: the vocabulary of {config.vocab_size:,} tokens is not one of Whisper's; give another model")
    if config.num_mel_bins not in MELS or config.max_source_positions != FRAMES // 2 or not config.tie_word_embeddings:
        raise UserError(
            f"{base}: config.json has num_mel_bins {config.num_mel_bins}, max_source_positions {config.max_source_positions} and "
            f"tie_word_embeddings {config.tie_word_embeddings}, expected {MELS[0]} or {MELS[1]}, {FRAMES // 2} and True; give another model"
        )
    return config


def make_processor(config: Any, options: Options) -> RecognizerProcessor:
    """The processor of `read` for a base with this config."""
    multilingual = config.vocab_size > VOCABULARIES[0]
    # As openai-whisper counts them: all tokens but those that every multilingual model has.
    languages = config.vocab_size - VOCABULARIES[1] + 99 if multilingual else 0
    return RecognizerProcessor(multilingual, languages, config.num_mel_bins, config.max_target_positions, options)


def build_on_meta(config: Any, base: Path) -> SpeechRecognizer:
    """The model with its parameters on the meta device. Raises `UserError` if it cannot be built."""
    from accelerate import init_empty_weights

    config = copy.deepcopy(config)
    config.apply_spec_augment = False  # of transformers: its masks would differ between processes
    config.encoder_layerdrop = config.decoder_layerdrop = 0.0  # likewise, and with it ranks would wait for layers that others drop
    whole = transformers_meta_models.build_on_meta(
        lambda: WhisperForConditionalGeneration._from_config(config, attn_implementation="sdpa"), base
    )
    with init_empty_weights(include_buffers=False):
        model = SpeechRecognizer(whole)
    model.proj_out.weight = whole.get_input_embeddings().weight  # moving to meta unties them
    return model


def is_trained(name: str, freeze_encoder: bool) -> bool:
    """Return whether full fine-tuning trains a parameter."""
    return name != SINUSOIDS and not (freeze_encoder and name.startswith(ENCODER))
