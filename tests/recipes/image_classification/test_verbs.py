"""The arguments of `generate`, and where data comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.image_classification.verbs import DATA, HELP, make_generate_parser


def test_images_and_their_number_of_labels_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    options = make_generate_parser().parse_args(["--image", "a.png", "b c.png", "--top", "3"])
    assert (options.image, options.top) == ([Path("a.png"), Path("b c.png")], 3)
    HELP["generate"]()
    assert "--image FILE" in capsys.readouterr().out and "data_prep images" in DATA
