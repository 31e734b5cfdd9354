"""A released model that image_classification trains, for docs/models.md: it trains any image classifier of transformers."""

from __future__ import annotations

from pydantic import JsonValue

from overtone.finetune.recipe import ReleasedModel

IMAGES = "– (images)"
# Shapes from the config.json on the hub. The model has no output layer: it gets one for the labels of the data, and the table counts two.
VIT: dict[str, JsonValue] = {
    **{"model_type": "vit", "image_size": 224, "patch_size": 16, "num_channels": 3, "layer_norm_eps": 1e-12},
    **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
PROCESSOR: dict[str, JsonValue] = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 224, "width": 224},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
FILES = {"preprocessor_config.json": PROCESSOR}

RELEASED = (ReleasedModel("google/vit-base-patch16-224-in21k", "apache-2.0", IMAGES, VIT, files=FILES),)
