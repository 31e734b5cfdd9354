"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.recipe import DataPreparation, Inference

from .cli_arguments import make_generate_parser


def generate(folder: Path, argv: list[str]) -> int:
    """`generate`: labels of images."""
    from . import label_prediction

    return label_prediction.generate(folder, argv)


INFERENCE = Inference(
    generate=generate,
    example=("--image", "photo.jpg"),
    help={"generate": lambda: make_generate_parser().print_help()},
)
DATA = DataPreparation(
    verb="images",
    advice="""To make some from a folder with a subfolder of images for each label:
  overtone images photos --out data/photos
or see the whole chain on handwritten digits: python -m overtone.recipes.image_classification.demo""",
)
