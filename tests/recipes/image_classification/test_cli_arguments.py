"""Tests of `overtone.recipes.image_classification.cli_arguments`."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.image_classification.cli_arguments import make_generate_parser


def test_images_and_their_number_of_labels_are_parsed() -> None:
    options = make_generate_parser().parse_args(["--image", "a.png", "b c.png", "--top", "3"])
    assert (options.image, options.top) == ([Path("a.png"), Path("b c.png")], 3)
