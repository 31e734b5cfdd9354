"""The released models that codec_lm trains, for docs/models.md."""

from __future__ import annotations

from pydantic import JsonValue

from overtone.finetune.recipe import ReleasedModel

from .families import ORPHEUS

# The shape of Llama-3.2-3B-Instruct, from which it was trained (`pretrain/config.yaml` of canopyai/Orpheus-TTS), with a vocabulary of
# 128,256 + 28,683 custom tokens + <|audio|>. apache-2.0 is the licence of the repository and of the cards; docs/codec_lm.md names that of
# Llama 3.2, which has terms for derivatives.
ORPHEUS_3B: dict[str, JsonValue] = {
    "model_type": "llama", "vocab_size": 156_940, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072, "tie_word_embeddings": True,
}  # fmt: skip

RELEASED = tuple(ReleasedModel(name, "apache-2.0", "English", ORPHEUS_3B, streaming=True) for name in ORPHEUS.models)
