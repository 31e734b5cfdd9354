"""The released models that whisper trains, for docs/models.md. Shapes from the config.json on the hub."""

from __future__ import annotations

from typing import Any

from overtone.finetune.recipe import ReleasedModel

PROCESSOR: dict[str, Any] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    **{"feature_size": 80, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30, "n_samples": 480000},
    **{"nb_max_frames": 3000, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": False},
}
"""preprocessor_config.json."""
ENGLISH, MULTILINGUAL = "English", "99 languages"


def describe_whisper(
    width: int, encoder_layers: int, decoder_layers: int, heads: int, multilingual: bool = True, mels: int = 80
) -> dict[str, Any]:
    """config.json of a Whisper of these sizes. The models with 128 mel bands have one language more."""
    end = 50257 if multilingual else 50256
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": (51866 if mels == 128 else 51865) if multilingual else 51864,
        **{"num_mel_bins": mels, "max_source_positions": 1500, "max_target_positions": 448, "d_model": width},
        **{"encoder_layers": encoder_layers, "encoder_attention_heads": heads, "encoder_ffn_dim": 4 * width},
        **{"decoder_layers": decoder_layers, "decoder_attention_heads": heads, "decoder_ffn_dim": 4 * width},
        **{"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "activation_function": "gelu"},
        **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1},
    }


RELEASED = (
    ReleasedModel("openai/whisper-tiny.en", "apache-2.0", ENGLISH, describe_whisper(384, 4, 4, 6, multilingual=False)),
    ReleasedModel("openai/whisper-small", "apache-2.0", MULTILINGUAL, describe_whisper(768, 12, 12, 12)),
    ReleasedModel("openai/whisper-medium", "apache-2.0", MULTILINGUAL, describe_whisper(1024, 24, 24, 16)),
    ReleasedModel("openai/whisper-large-v3", "apache-2.0", MULTILINGUAL, describe_whisper(1280, 32, 32, 20, mels=128)),
    ReleasedModel("openai/whisper-large-v3-turbo", "mit", MULTILINGUAL, describe_whisper(1280, 32, 4, 20, mels=128)),
)
