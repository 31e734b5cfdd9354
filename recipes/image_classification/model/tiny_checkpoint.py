"""Writes a small ViT with random weights as a folder that AutoModelForImageClassification and AutoImageProcessor load.

    python -m overtone.recipes.image_classification.model.tiny_checkpoint FOLDER [--seed 0]

It is for tests and for the demo: it takes the same code path as a released model, in seconds and without a download. Its names are those
of a backbone without an output layer, as in google/vit-base-patch16-224-in21k.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from pydantic import JsonValue
from transformers import AutoConfig, AutoModelForImageClassification

from overtone.finetune.errors import catch_user_errors
from overtone.finetune.storage import files
from overtone.recipes.tiny_checkpoints import make_parser, make_random_weights, report_checkpoint, require_new_folder, write_checkpoint
from overtone.recipes.transformers_weight_names import find_file_names

from ..released_models import PROCESSOR as RELEASED_PROCESSOR
from ..released_models import VIT

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 16, "patch_size": 4}
CONFIG: dict[str, JsonValue] = {**VIT, "architectures": ["ViTModel"], **SMALL}
"""config.json."""
PROCESSOR: dict[str, JsonValue] = {**RELEASED_PROCESSOR, "size": {"height": 16, "width": 16}}
"""preprocessor_config.json."""
WEIGHT_STD = 0.08
"""Standard deviation of the initial weights, about 0.6/√64: with the usual 0.02, so narrow a model learns little for its first steps."""


def build(folder: Path, seed: int = 0) -> Path:
    """Write model and image processor into a new folder. The same seed gives the same bytes. Raises `UserError` if the folder exists."""
    require_new_folder(folder)
    contents = {
        "config.json": files.json_bytes(CONFIG),
        "preprocessor_config.json": files.json_bytes(PROCESSOR),
        "model.safetensors": make_weights(seed),
    }
    return write_checkpoint(folder, contents)


def make_weights(seed: int) -> bytes:
    """`model.safetensors`, without an output layer."""
    with torch.device("meta"):
        model = AutoModelForImageClassification.from_config(AutoConfig.for_model(**CONFIG))
    names = find_file_names(model, dict(model.named_parameters()))
    shapes = {names[name].removeprefix("vit."): parameter.shape for name, parameter in model.named_parameters()}
    return make_random_weights({name: shape for name, shape in shapes.items() if not name.startswith("classifier.")}, WEIGHT_STD, seed)


def main(argv: list[str]) -> int:
    """Body of the command line."""
    arguments = make_parser(
        "overtone.recipes.image_classification.model.tiny_checkpoint", "Write a small ViT with random weights."
    ).parse_args(argv)
    return report_checkpoint(build(arguments.folder, arguments.seed))


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
