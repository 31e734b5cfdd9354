"""Configs of Qwen3-TTS 12 Hz models: the two released ones, and small ones that follow the same rules.

Numbers of the released models are from their `config.json` on the hub (Qwen/Qwen3-TTS-12Hz-0.6B-Base and -1.7B-Base).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CODEBOOKS = 16
FRAME_RATE = 12.5
"""Frames of codes per second of speech."""
SUPPRESSED = 1024
"""Number of ids at the end of the talker's vocabulary that are never sampled, except end of speech: control ids and speakers."""

_CONTROL = {
    "codec_pad_id": 100,
    "codec_bos_id": 101,
    "codec_eos_token_id": 102,
    "codec_think_id": 106,
    "codec_nothink_id": 107,
    "codec_think_bos_id": 108,
    "codec_think_eos_id": 109,
}
_LANGUAGES = {
    "english": 2,
    "german": 5,
    "spanish": 6,
    "chinese": 7,
    "japanese": 10,
    "french": 13,
    "korean": 16,
    "russian": 21,
    "italian": 22,
    "portuguese": 23,
}
"""Ids of this table and of `_CONTROL` are offsets from the first id after the audio codes."""


@dataclass(frozen=True)
class TextIds:
    """Special ids of the text tokenizer that the layout needs, and its vocabulary size."""

    im_start: int
    im_end: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    vocabulary: int


RELEASED_TEXT = TextIds(im_start=151644, im_end=151645, tts_pad=151671, tts_bos=151672, tts_eos=151673, vocabulary=151936)


@dataclass(frozen=True)
class ModelSize:
    """The values in which the model sizes differ; widths in channels."""

    label: str
    codebook: int
    text: int
    talker: int
    talker_mlp: int
    talker_layers: int
    predictor: int
    predictor_mlp: int
    predictor_layers: int
    heads: int
    key_value_heads: int
    head: int
    speaker_channels: int
    speaker_inner: int
    positions: int
    spread: float = 0.02
    """Standard deviation of initial weights. A narrow model needs a large one, so that frozen heads can predict a code with confidence."""


RELEASED = {
    "0.6B": ModelSize("0b6", 2048, 2048, 1024, 3072, 28, 1024, 3072, 5, 16, 8, 128, 512, 128, 32768),
    "1.7B": ModelSize("1b7", 2048, 2048, 2048, 6144, 28, 1024, 3072, 5, 16, 8, 128, 512, 128, 32768),
}
SMALL = {
    # Like the 1.7B: text as wide as the talker, so that tests must notice a missing projection; a predictor narrower than the talker.
    "nano": ModelSize("nano", 64, 32, 32, 64, 2, 16, 32, 1, 4, 2, 16, 16, 8, 2048, spread=0.2),
    # Like the 0.6B: text of another width, predictor and talker equally wide, so that there is no projection between them.
    # Large enough to memorize two minutes of speech in 200 steps, small enough to do so on a CPU within two minutes.
    "demo": ModelSize("demo", 64, 64, 96, 192, 2, 96, 192, 2, 6, 2, 16, 16, 8, 2048, spread=0.1),
    "mini": ModelSize("mini", 2048, 48, 64, 128, 2, 64, 128, 1, 4, 2, 16, 16, 8, 2048, spread=0.1),
}

PREPROCESSOR_CONFIG: dict[str, Any] = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "sampling_rate": 24000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "chunk_length_s": None,
    "overlap": None,
}
"""`speech_tokenizer/preprocessor_config.json`, the same for every size."""


def make_released_config(size: str) -> dict[str, Any]:
    """`config.json` of a released Base model; `size` is "0.6B" or "1.7B"."""
    return make_model_config(RELEASED[size], RELEASED_TEXT)


def make_model_config(width: ModelSize, text: TextIds) -> dict[str, Any]:
    """`config.json` of a Base model with a speaker encoder."""
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": width.label,
        "tts_model_type": "base",
        "im_start_token_id": text.im_start,
        "im_end_token_id": text.im_end,
        "tts_pad_token_id": text.tts_pad,
        "tts_bos_token_id": text.tts_bos,
        "tts_eos_token_id": text.tts_eos,
        "initializer_range": width.spread,
        "talker_config": _talker(width, text),
        "speaker_encoder_config": _speaker_encoder(width),
    }


def _talker(width: ModelSize, text: TextIds) -> dict[str, Any]:
    half = width.head // 2
    high = half * 5 // 16  # the released split of a 128-wide head is 24, 20, 20
    return {
        "model_type": "qwen3_tts_talker",
        "vocab_size": width.codebook + SUPPRESSED,
        "hidden_size": width.talker,
        "intermediate_size": width.talker_mlp,
        "num_hidden_layers": width.talker_layers,
        "text_hidden_size": width.text,
        "text_vocab_size": text.vocabulary,
        "rope_scaling": {"interleaved": True, "mrope_section": [half - 2 * high, high, high], "rope_type": "default", "type": "default"},
        "spk_id": {},
        "spk_is_dialect": {},
        "codec_language_id": {name: width.codebook + offset for name, offset in _LANGUAGES.items()},
        "code_predictor_config": _predictor(width),
        **_attention(width),
        **{name: width.codebook + offset for name, offset in _CONTROL.items()},
    }


def _predictor(width: ModelSize) -> dict[str, Any]:
    return {
        "model_type": "qwen3_tts_talker_code_predictor",
        "vocab_size": width.codebook,
        "hidden_size": width.predictor,
        "intermediate_size": width.predictor_mlp,
        "num_hidden_layers": width.predictor_layers,
        **_attention(width),
    }


def _attention(width: ModelSize) -> dict[str, Any]:
    return {
        "num_attention_heads": width.heads,
        "num_key_value_heads": width.key_value_heads,
        "head_dim": width.head,
        "num_code_groups": CODEBOOKS,
        "hidden_act": "silu",
        "max_position_embeddings": width.positions,
        "initializer_range": width.spread,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
    }


def _speaker_encoder(width: ModelSize) -> dict[str, Any]:
    channels = width.speaker_channels
    return {
        "mel_dim": 128,
        "enc_dim": width.talker,  # the speaker vector replaces a codec embedding
        "enc_channels": [channels, channels, channels, channels, 3 * channels],
        "enc_kernel_sizes": [5, 3, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 4, 1],
        "enc_attention_channels": width.speaker_inner,
        "enc_res2net_scale": min(8, channels // 4),
        "enc_se_channels": width.speaker_inner,
        "sample_rate": 24000,
    }


def make_codec_config(codebook: int) -> dict[str, Any]:
    """`speech_tokenizer/config.json` of a small 12 Hz codec: 24 kHz, 1920 samples per frame, 16 codebooks of `codebook` entries."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": CODEBOOKS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "encode_downsample_rate": 1920,
        "decode_upsample_rate": 1920,
        "encoder_config": _codec_encoder(codebook),
        "decoder_config": _codec_decoder(codebook),
    }


def _codec_encoder(codebook: int) -> dict[str, Any]:
    return _codec_side(codebook) | {
        "model_type": "mimi",
        "sampling_rate": 24000,
        "frame_rate": FRAME_RATE,
        "_frame_rate": FRAME_RATE,
        "audio_channels": 1,
        "num_filters": 4,
        "num_residual_layers": 1,
        "upsampling_ratios": [8, 6, 5, 4],  # 960, followed by a convolution of stride 2
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "sliding_window": 250,
        "upsample_groups": 32,
        "use_causal_conv": True,
        "pad_mode": "constant",
    }


def _codec_decoder(codebook: int) -> dict[str, Any]:
    return _codec_side(codebook) | {
        "codebook_dim": 32,  # twice the encoder's
        "latent_dim": 32,
        "semantic_codebook_size": 2 * codebook,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "decoder_dim": 64,
        "vector_quantization_hidden_dimension": 32,
    }


def _codec_side(codebook: int) -> dict[str, Any]:
    """The values that encoder and decoder share: a narrow transformer and the quantizer's size."""
    return {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_quantizers": CODEBOOKS,
        "num_semantic_quantizers": 1,
        "codebook_size": codebook,
        "max_position_embeddings": 8000,
    }
