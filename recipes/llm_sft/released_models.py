"""Some of the released models that llm_sft trains, for docs/models.md: it trains any causal language model of transformers."""

from __future__ import annotations

from pydantic import JsonValue

from overtone.finetune.recipe import ReleasedModel

# Shapes from the config.json of each model on the hub.
QWEN3: dict[str, JsonValue] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
}
QWEN3_SIZES: dict[str, dict[str, JsonValue]] = {
    "0.6B": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    "1.7B": {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "tie_word_embeddings": False,
    },
}  # fmt: skip
QWEN25_15B: dict[str, JsonValue] = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_31_8B: dict[str, JsonValue] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
SMOLLM2_135M: dict[str, JsonValue] = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip

RELEASED = (
    *(
        ReleasedModel(f"Qwen/Qwen3-{size}", "apache-2.0", "119 languages and dialects", {**QWEN3, **shape}, streaming=True)
        for size, shape in QWEN3_SIZES.items()
    ),
    ReleasedModel("Qwen/Qwen2.5-1.5B-Instruct", "apache-2.0", "over 29 languages", QWEN25_15B, streaming=True),
    ReleasedModel(
        "meta-llama/Llama-3.1-8B",
        "llama3.1",
        "8: English, French, German, Hindi, Italian, Portuguese, Spanish, Thai",
        LLAMA_31_8B,
        streaming=True,
    ),
    ReleasedModel("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0", "English", SMOLLM2_135M, streaming=True),
)
