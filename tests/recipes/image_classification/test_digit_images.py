"""The digits are scikit-learn's, pixel by pixel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from overtone.finetune.errors import UserError
from overtone.recipes.image_classification import digit_images

datasets = pytest.importorskip("sklearn.datasets")


def test_every_digit_is_an_image_in_the_folder_of_its_label(tmp_path: Path) -> None:
    assert digit_images.main([str(tmp_path / "digits")]) == 0
    digits, paths = datasets.load_digits(), sorted((tmp_path / "digits").rglob("*.pgm"), key=lambda path: path.stem)
    assert len(paths) == 1797 and [int(path.parent.name) for path in paths] == digits.target.tolist()
    for path, image in zip(paths[:50], digits.images[:50], strict=True):
        assert np.array_equal(np.round((255 - np.asarray(Image.open(path)).astype(float)) * 16 / 255), image)
    with pytest.raises(UserError, match="exists already"):
        digit_images.main([str(tmp_path / "digits")])
