"""Decodes an image file to RGB with Pillow: upright, opaque, 8 bits, and never larger than `MOST_PIXELS`.

Pillow comes with matplotlib. It is imported inside the functions, because `--help` imports the modules that import this one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.strict_json import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats whose decoders run no other program; Pillow would hand EPS to Ghostscript."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
MOST_PIXELS = 100_000_000
"""Maximum pixels of an image, which take 300 MB when decoded. A file of a few kilobytes can declare more, and would fill the memory."""
FEWEST = 4
"""Minimum pixels of a side. In a smaller array, rows cannot be distinguished from channels, so image processors read some of them
transposed."""
ORIENTATION = 0x0112
"""EXIF tag of the orientation of the camera."""


@dataclass(frozen=True)
class DecodedImage:
    """An image in RGB, and what was changed to make it so."""

    image: Image
    format: str
    """One of `FORMATS`."""
    changes: tuple[str, ...] = ()
    """Such as `turned by EXIF orientation`; the words are counted in reports."""


def decode_image(source: Path | bytes) -> DecodedImage:
    """Decode a file, or the bytes of one. Raises `UserError` for a file that is no image, is broken, too large or too small."""
    from PIL import Image, ImageOps

    try:
        if isinstance(source, Path):
            input_files.require_regular(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own warning of large images, whose limit is not ours
            with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as opened:
                check_size(opened.width, opened.height)
                changes = ["first frame of several"] if getattr(opened, "n_frames", 1) > 1 else []
                turned = opened.getexif().get(ORIENTATION, 1) in range(2, 9)
                opened.load()
                image = ImageOps.exif_transpose(opened) if turned else opened
                if turned:
                    changes.append("turned by EXIF orientation")
                image, converted = convert_to_rgb(image)
                return DecodedImage(image, str(opened.format), tuple(changes + converted))
    except UserError:
        raise
    except Image.DecompressionBombError:  # Pillow's own limit, of twice as many
        raise UserError(f"has more than {MOST_PIXELS:,} pixels; make it smaller") from None
    except FileNotFoundError:
        raise UserError(f"{source!s}: no such file") from None
    except Exception as error:  # each decoder raises its own types
        raise UserError(f"cannot be decoded ({type(error).__name__}: {one_line(error):.120})") from None


def check_size(width: int, height: int) -> None:
    """Raises `UserError` for an image that would not fit the memory, or is too small."""
    if width * height > MOST_PIXELS:
        raise UserError(f"has {width:,} × {height:,} pixels, more than {MOST_PIXELS:,} in all; make it smaller")
    if min(width, height) < FEWEST:
        raise UserError(f"has {width} × {height} pixels, and needs {FEWEST} on each side")


def convert_to_rgb(image: Image) -> tuple[Image, list[str]]:
    """Convert a Pillow image of any mode to RGB, and return it with what was changed. Transparent pixels become white."""
    import numpy as np
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy(), []
    if image.mode.startswith("I;16"):  # Pillow's own conversion would clip everything above 255
        return Image.fromarray((np.asarray(image, dtype=np.uint16) >> 8).astype(np.uint8)).convert("RGB"), ["16 bits to 8"]
    if image.mode in ("I", "F"):
        raise UserError(f"has pixels of 32 bits (mode {image.mode}), whose range is unknown; save it with 8 bits")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(ground, layer).convert("RGB"), ["transparency over white"]
    names = {"L": "grayscale to RGB", "1": "grayscale to RGB", "P": "palette to RGB", "CMYK": "CMYK to RGB"}
    return image.convert("RGB"), [names.get(image.mode, f"{image.mode} to RGB")]
