"""Whisper from CTranslate2's format (`model.bin`) to the file that `whisper.load_model` reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from whisper.model import ModelDimensions, Whisper

from overtone.finetune.errors import UserError

Variables = dict[str, NDArray[np.generic]]
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
VERSION = 6
SPECIFICATION = "WhisperSpec"

WHOLE = {
    "encoder.conv1.weight": "encoder/conv1/weight",
    "encoder.conv1.bias": "encoder/conv1/bias",
    "encoder.conv2.weight": "encoder/conv2/weight",
    "encoder.conv2.bias": "encoder/conv2/bias",
    "encoder.positional_embedding": "encoder/position_encodings/encodings",
    "encoder.ln_post.weight": "encoder/layer_norm/gamma",
    "encoder.ln_post.bias": "encoder/layer_norm/beta",
    "decoder.token_embedding.weight": "decoder/embeddings/weight",
    "decoder.positional_embedding": "decoder/position_encodings/encodings",
    "decoder.ln.weight": "decoder/layer_norm/gamma",
    "decoder.ln.bias": "decoder/layer_norm/beta",
}
"""openai-whisper's name → CTranslate2's, for what is there once."""
NORMS = {"attn_ln": "self_attention", "cross_attn_ln": "attention", "mlp_ln": "ffn"}
PROJECTIONS = {
    "attn.out": ("self_attention/linear_1", 0, 1),
    "attn.query": ("self_attention/linear_0", 0, 3),
    "attn.key": ("self_attention/linear_0", 1, 3),
    "attn.value": ("self_attention/linear_0", 2, 3),
    "cross_attn.query": ("attention/linear_0", 0, 1),
    "cross_attn.key": ("attention/linear_1", 0, 2),
    "cross_attn.value": ("attention/linear_1", 1, 2),
    "cross_attn.out": ("attention/linear_2", 0, 1),
    "mlp.0": ("ffn/linear_0", 0, 1),
    "mlp.2": ("ffn/linear_1", 0, 1),
}
"""openai-whisper's projection → CTranslate2's, and which of how many parts of its rows."""


def read_variables(path: Path) -> Variables:
    """The variables of a model.bin by name. Raises `UserError` if it is of another version or kind."""
    with path.open("rb") as file:
        version, name, _revision = _read(file, "I"), _read_text(file), _read(file, "I")
        if (version, name) != (VERSION, SPECIFICATION):
            raise UserError(f"{path} is a {name} of version {version}; the builder knows {SPECIFICATION} of version {VERSION}")
        found: Variables = {}
        for _ in range(_read(file, "I")):
            name = _read_text(file)
            shape = [_read(file, "I") for _ in range(_read(file, "B"))]
            kind = _read(file, "B")
            found[name] = np.frombuffer(file.read(_read(file, "I")), TYPES[kind]).reshape(shape)
    return found


def _read(file: BinaryIO, form: str) -> int:
    (number,) = struct.unpack(f"<{form}", file.read(struct.calcsize(form)))
    return int(number)


def _read_text(file: BinaryIO) -> str:
    return file.read(_read(file, "H"))[:-1].decode("utf-8")  # it ends with a zero byte


def convert_whisper(source: Path, target: Path) -> None:
    """Write `target`, a `.pt`, from `source`, a model.bin. `Whisper.load_state_dict` proves that no tensor is missing or left over."""
    variables = read_variables(source)
    state = dict(name_tensors(variables))
    dims = measure(variables, state)
    Whisper(dims).load_state_dict(state)
    torch.save({"dims": asdict(dims), "model_state_dict": state}, target)


def name_tensors(variables: Variables) -> Iterator[tuple[str, torch.Tensor]]:
    def get(name: str) -> torch.Tensor:
        return torch.from_numpy(variables[name].copy())

    for target, source in WHOLE.items():
        yield target, get(source)
    for side in ("encoder", "decoder"):
        for number in range(_count_layers(variables, side)):
            theirs, ours = f"{side}/layer_{number}", f"{side}.blocks.{number}"
            for norm, block in NORMS.items():
                if f"{theirs}/{block}/layer_norm/gamma" in variables:
                    yield f"{ours}.{norm}.weight", get(f"{theirs}/{block}/layer_norm/gamma")
                    yield f"{ours}.{norm}.bias", get(f"{theirs}/{block}/layer_norm/beta")
            for projection, (linear, part, parts) in PROJECTIONS.items():
                if f"{theirs}/{linear}/weight" not in variables:
                    continue
                yield f"{ours}.{projection}.weight", get(f"{theirs}/{linear}/weight").chunk(parts)[part].clone()
                if not projection.endswith("key"):  # Whisper's keys have no bias; CTranslate2 stores zeros
                    yield f"{ours}.{projection}.bias", get(f"{theirs}/{linear}/bias").chunk(parts)[part].clone()


def _count_layers(variables: Variables, side: str) -> int:
    return sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/bias") for name in variables)


def measure(variables: Variables, state: dict[str, torch.Tensor]) -> ModelDimensions:
    (frames, width), (vocabulary, text_width) = (
        state[f"{name}"].shape for name in ("encoder.positional_embedding", "decoder.token_embedding.weight")
    )
    return ModelDimensions(
        n_mels=state["encoder.conv1.weight"].shape[1],
        n_audio_ctx=frames,
        n_audio_state=width,
        n_audio_head=int(variables["encoder/num_heads"]),
        n_audio_layer=_count_layers(variables, "encoder"),
        n_vocab=vocabulary,
        n_text_ctx=state["decoder.positional_embedding"].shape[0],
        n_text_state=text_width,
        n_text_head=int(variables["decoder/num_heads"]),
        n_text_layer=_count_layers(variables, "decoder"),
    )
