"""A Wav2Vec2ForCTC with hand-made weights that maps tones to letters: letter i is a tone of `PITCHES[i]` Hz."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

LETTERS = "abcd"
PITCHES = (500, 1000, 1500, 2000)
FRAME = 320
TONE_SECONDS, SILENCE_SECONDS = 0.1, 0.1


def save_tone_model(folder: Path) -> Path:
    """Quadrature filters for each tone, as the first convolution; all later layers pass their energy on."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, conv_dim=(8,), conv_stride=(FRAME,),
        conv_kernel=(FRAME,), conv_bias=False, feat_extract_norm="layer", feat_extract_activation="relu", num_conv_pos_embeddings=2,
        num_conv_pos_embedding_groups=1, do_stable_layer_norm=True, pad_token_id=0, layer_norm_eps=1e-3,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    times = torch.arange(FRAME) / 16000
    for letter, pitch in enumerate(PITCHES):
        state["wav2vec2.feature_extractor.conv_layers.0.conv.weight"][2 * letter, 0] = torch.cos(2 * torch.pi * pitch * times)
        state["wav2vec2.feature_extractor.conv_layers.0.conv.weight"][2 * letter + 1, 0] = -torch.cos(2 * torch.pi * pitch * times)
    for name in state:
        if "layer_norm.weight" in name:
            state[name] = torch.ones_like(state[name])
        elif name.endswith("parametrizations.weight.original1"):  # of a weight-normalised convolution, which must not divide by zero
            state[name] = torch.full_like(state[name], 1e-6)
    state["wav2vec2.feature_projection.projection.weight"] = torch.eye(8)
    for letter in range(len(LETTERS)):
        state["lm_head.weight"][3 + letter, 2 * letter : 2 * letter + 2] = 6.0
    state["lm_head.bias"][0] = 3.0  # silence: no tone has energy, so blank wins
    state["lm_head.bias"][1:3] = -8.0
    model.load_state_dict(state)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({"<pad>": 0, "<unk>": 1, "|": 2} | {one: 3 + at for at, one in enumerate(LETTERS)}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False}))
    return folder


def speak(text: str) -> np.ndarray:
    """[n] samples at 16 kHz: silence, then every letter with silence after it."""
    silence, times = np.zeros(int(SILENCE_SECONDS * 16000), np.float32), np.arange(int(TONE_SECONDS * 16000)) / 16000
    tones = [part for letter in text if letter != " " for part in (np.cos(2 * np.pi * PITCHES[LETTERS.index(letter)] * times), silence)]
    return np.concatenate([silence, *tones]).astype(np.float32)
