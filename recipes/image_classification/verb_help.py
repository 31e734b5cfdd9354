"""Help of the verbs of this recipe, and how its training data is made. Must not import torch: `--help` reads this module."""

from __future__ import annotations

from .cli_arguments import make_generate_parser

DATA = """To make some from a folder with a subfolder of images for each label:
  overtone images photos --out data/photos
or see the whole chain on handwritten digits: python -m overtone.recipes.image_classification.demo"""
"""How training data is made."""
DATA_VERB = "images"
"""Of data_prep: converts raw data."""
HELP = {"generate": lambda: make_generate_parser().print_help()}
"""Verb → prints its options."""
