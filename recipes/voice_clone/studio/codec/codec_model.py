"""A small Qwen3-TTS 12 Hz tokenizer: its shape, its parts as training needs them, and the folder that the stock loader reads.

Mimi-type encoder → the same latent quantised twice, by 1 semantic and by 15 residual acoustic codebooks → a causal decoder of its own.
The decoder's waveform part has most of its layers at low rates: 8 channels are left at 24 kHz, where a layer costs most.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from finetune.storage import files

from ...model.model_configs import EXTRACTOR, codec_shape
from .codebooks import ENTRIES, WIDTH, Books

if TYPE_CHECKING:
    from torch import Tensor, nn

LATENT = 128
"""Channels between the codes and the waveform part."""


def shape() -> dict[str, Any]:
    """`config.json`: 0.9 M parameters in the encoder, 1.3 M in the decoder."""
    small = codec_shape(ENTRIES)
    channels = 96
    encoder = {
        "hidden_size": channels,
        "num_filters": 16,
        "codebook_dim": WIDTH,
        "vector_quantization_hidden_dimension": WIDTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": channels // 4,
        "intermediate_size": 2 * channels,
        "upsample_groups": channels,
        "layer_scale_initial_scale": 0.1,
    }
    decoder = {
        "codebook_dim": 2 * WIDTH,
        "semantic_codebook_size": ENTRIES,
        "vector_quantization_hidden_dimension": WIDTH,
        "latent_dim": LATENT,
        "hidden_size": LATENT,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": LATENT // 4,
        "intermediate_size": 2 * LATENT,
        "num_hidden_layers": 2,
        "upsampling_ratios": [2, 2, 2],  # to 100 Hz, the rate of the features that it learns first
        "upsample_rates": [8, 6, 5],
        "decoder_dim": 64,
        "layer_scale_initial_scale": 0.1,
    }
    return {**small, "encoder_config": small["encoder_config"] | encoder, "decoder_config": small["decoder_config"] | decoder}


def build(seed: int) -> Any:
    """The package's own model in fp32 with fresh weights and empty codebooks."""
    import torch

    import_qwen_tts()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**shape())).float()


def encode_latent(encoder: Any, waves: Tensor) -> Tensor:
    """[B, samples] → [B, WIDTH, frames]: what the acoustic codebooks quantise. As `MimiModel._encode_frame`, with gradients."""
    inside = encoder.encoder(waves.unsqueeze(1))
    inside = encoder.encoder_transformer(inside.transpose(1, 2), return_dict=True)[0].transpose(1, 2)
    projected: Tensor = encoder.quantizer.acoustic_residual_vector_quantizer.input_proj(encoder.downsample(inside))
    return projected


def decode_frames(decoder: Any, codes: Tensor) -> Tensor:
    """[B, frames, 16] codes → [B, LATENT, frames] at 12.5 Hz: the part with attention."""
    inside = decoder.pre_conv(decoder.quantizer.decode(codes.transpose(1, 2))).transpose(1, 2)
    found: Tensor = decoder.pre_transformer(inputs_embeds=inside).last_hidden_state.transpose(1, 2).contiguous()
    return found


def raise_rate(decoder: Any, inside: Tensor) -> Tensor:
    """[B, LATENT, frames] → [B, LATENT, 8·frames] at 100 Hz."""
    for pair in decoder.upsample:
        for layer in pair:
            inside = layer(inside)
    return inside


def make_wave(decoder: Any, inside: Tensor) -> Tensor:
    """[B, LATENT, 8·frames] → [B, samples]; not clipped, so that gradients are not either."""
    for layer in decoder.decoder:
        inside = layer(inside)
    return inside.squeeze(1)


def fill_books(model: Any, books: Books) -> None:
    """Put the codebooks into both sides, as sums over one use each. The semantic book sees the leading axes alone: the rest of its
    projection is zero."""
    import torch

    encoder, decoder = model.encoder.quantizer, model.decoder.quantizer
    semantic, acoustic = encoder.semantic_residual_vector_quantizer, encoder.acoustic_residual_vector_quantizer
    with torch.no_grad():
        semantic.input_proj.weight.copy_(acoustic.input_proj.weight)
        semantic.input_proj.weight[books.leading :] = 0
        for unused in (semantic.output_proj, acoustic.output_proj):
            unused.weight.zero_()  # the package never reads them; zeros take no room in a compressed file
        _fill([layer.codebook.embed_sum for layer in (*semantic.layers, *acoustic.layers)], books)
        _fill([layer._codebook.embedding_sum for layer in (*decoder.rvq_first.vq.layers, *decoder.rvq_rest.vq.layers)], books)
    for layer in (*semantic.layers, *acoustic.layers):
        layer.codebook._embed = None  # made at the first use, and stale now


def _fill(tables: list[Tensor], books: Books) -> None:
    for table, entries in zip(tables, books.tables(), strict=True):
        table.copy_(entries)


def round_to_half(module: nn.Module) -> None:
    """Give every weight the value that it will have when it is loaded from fp16: codes that are made now are then made for good."""
    import torch

    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().float())


def write_folder(model: Any, folder: Path) -> Path:
    """A folder for `Qwen3TTSTokenizer.from_pretrained`, fp16 weights, which must not exist yet."""
    from safetensors.torch import save

    weights = {name: tensor.half().contiguous().clone() for name, tensor in model.state_dict().items()}
    temporary = files.fresh_folder(folder.parent, folder.name)
    files.write_in_place(temporary / "config.json", files.json_bytes(shape()))
    files.write_in_place(temporary / "preprocessor_config.json", files.json_bytes(EXTRACTOR))
    files.write_in_place(temporary / "model.safetensors", save(weights, metadata={"format": "pt"}))
    files.commit_folder(temporary, folder)
    return folder
