"""`overtone generate` of this recipe: the most likely labels of image files, by an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageClassification

from overtone.data_prep.images.image_decoding import decode_image
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import admit, require_safetensors, require_weights
from overtone.finetune.terminal import print_line
from overtone.recipes.class_labels import read_base_labels
from overtone.recipes.transformers_meta_models import explain_loading

from .cli_arguments import make_generate_parser
from .image_processing import load_image_processor
from .model.modeling import image_classifier


def generate(folder: Path, argv: list[str]) -> int:
    """Print the labels of each image with their probabilities. Raises `UserError` for images that cannot be decoded."""
    options = parse_arguments(make_generate_parser(), argv)
    if options.top < 1:
        raise UserError(f"--top {options.top}: give a number of labels, 1 or more")
    images = []
    for path in options.image:
        try:
            images.append(decode_image(path).image)
        except UserError as error:
            raise UserError(f"--image {path}: {error}") from None
    model, processor = load_export(folder)
    labels = read_base_labels(model.config, folder)
    for path, image in zip(options.image, images, strict=True):
        inputs = processor(images=image, return_tensors="pt")
        with torch.inference_mode():
            shares = model(pixel_values=inputs["pixel_values"].to(model.device, model.dtype)).logits[0].float().softmax(-1)
        best = shares.topk(min(options.top, len(labels)))
        named = [f"{labels[number]} {share:.1%}" for share, number in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        print_line(f"{path}: {', '.join(named)}")
    return 0


def load_export(folder: Path) -> tuple[Any, Any]:
    """Model, on a GPU if there is one, and image processor of an exported folder. Raises `UserError` if they cannot be loaded."""
    require_safetensors(folder, "--model")
    processor = load_image_processor(folder)
    with admit(folder, image_classifier()) as clean, explain_loading(folder):
        model, loaded = AutoModelForImageClassification.from_pretrained(
            clean, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
        require_weights(loaded["missing_keys"], ())
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), processor
