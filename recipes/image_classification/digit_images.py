"""Writes scikit-learn's handwritten digits as a folder of images, one subfolder for each label.

    python -m overtone.recipes.image_classification.digit_images FOLDER

They are real: 1,797 digits that 43 people wrote on forms of NIST, in 8 × 8 pixels of 17 grays (Alpaydin and Kaynak 1998, Optical
Recognition of Handwritten Digits, UCI Machine Learning Repository, doi:10.24432/C50P49). They come with scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.recipes.tiny_checkpoints import require_new_folder

GRAYS = 16
"""Largest value of a pixel: the number of black pixels in a square of 4 × 4 of the scanned form."""


def write_digits(folder: Path) -> int:
    """Write `folder`/LABEL/NUMBER.pgm, dark on light, and return the number of images. Raises `UserError` without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("the digits are part of scikit-learn: pip install 'overtone[speech]'") from None
    digits = load_digits()
    with files.new_folder(folder) as temporary:
        for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            place = files.make_folder(temporary / str(label)) / f"{number:04d}.pgm"
            gray = np.round(255 * (1 - pixels / GRAYS)).astype(np.uint8)
            files.write_in_place(place, b"P5 %d %d 255\n" % gray.shape[::-1] + gray.tobytes())
    return len(digits.target)


def main(argv: list[str]) -> int:
    """Body of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m overtone.recipes.image_classification.digit_images",
        description="Write 1,797 handwritten digits as images.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, help="new folder to write")
    folder = parser.parse_args(argv).folder
    require_new_folder(folder)
    print_line(f"{folder}: {write_digits(folder):,} images")
    return 0


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
