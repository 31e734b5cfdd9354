"""Writes a small ViT with random weights as a folder that AutoModelForImageClassification and AutoImageProcessor load.

    python -m recipes.image_classification.tiny_checkpoint FOLDER [--seed 0]

It is for tests and for the demo: it takes the same code path as a released model, in seconds and without a download. Its names are those
of a backbone without an output layer, as in google/vit-base-patch16-224-in21k.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForImageClassification

from finetune.errors import UserError, exit_code
from finetune.storage import files

from .classifier_model import find_file_names

CONFIG: dict[str, Any] = {
    "architectures": ["ViTModel"],
    "model_type": "vit",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_act": "gelu",
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
    "qkv_bias": True,
    "layer_norm_eps": 1e-6,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
}
"""config.json."""
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 16, "width": 16},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""preprocessor_config.json."""
WEIGHT_STD = 0.08
"""Standard deviation of the initial weights, about 0.6/√64: with the usual 0.02, so narrow a model learns little for its first steps."""


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and image processor into a new folder. The same seed gives the same bytes. Raises `UserError` if the folder exists."""
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it, or choose another folder")
    contents = {
        "config.json": files.json_bytes(CONFIG),
        "preprocessor_config.json": files.json_bytes(PROCESSOR),
        "model.safetensors": make_weights(seed),
    }
    with files.new_folder(folder) as temporary:
        for name, content in contents.items():
            files.write_in_place(temporary / name, content)
    return folder


def make_weights(seed: int) -> bytes:
    """`model.safetensors`: norms are 1, biases 0, other weights random, in the order of their names in files, so that the bytes are the
    same with every release of transformers."""
    with torch.device("meta"):
        model = AutoModelForImageClassification.from_config(AutoConfig.for_model(**CONFIG))
    names = find_file_names(model)
    shapes = {names[name].removeprefix("vit."): parameter.shape for name, parameter in model.named_parameters()}
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in sorted(name for name in shapes if not name.startswith("classifier.")):
        norm = "layernorm" in name and name.endswith(".weight")
        random = WEIGHT_STD * torch.randn(shapes[name], generator=chance)
        tensors[name] = torch.ones(shapes[name]) if norm else torch.zeros(shapes[name]) if name.endswith(".bias") else random
    return save(tensors, metadata={"format": "pt"})


def main(argv: list[str]) -> int:
    """Body of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.image_classification.tiny_checkpoint", description="Write a small ViT with random weights."
    )
    parser.add_argument("folder", type=Path, help="new folder to write")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same weights (default %(default)s)")
    arguments = parser.parse_args(argv)
    build(arguments.folder, arguments.seed)
    print(f"{arguments.folder}: a model with random weights; train it before use")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
