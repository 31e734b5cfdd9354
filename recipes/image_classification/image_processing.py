"""Images as tensors: the base's own image processor for evaluation, and random crops of a larger copy for training.

The processor resizes and crops; its last two steps, rescaling and normalization, are left to the model (`modeling.Normalization`),
so that samples stay in 8 bits. An evaluation therefore sees exactly what `pipeline("image-classification")` will see of the export.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from overtone.data_prep.images.image_decoding import decode_image
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row, Sample
from overtone.finetune.storage.files import resolve_under
from overtone.finetune.storage.model_security import admit, read_object
from overtone.finetune.storage.strict_json import one_line
from overtone.recipes.class_labels import find_label

from .model.modeling import Normalization, image_classifier
from .options import Options

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BaseImageProcessor

SETTINGS = "preprocessor_config.json"
STORED_AREA = 2.0
"""Pixels of the copy that crops are taken from, relative to the model's input: a crop of half of its area is not enlarged."""
SIZES = ("size", "crop_size", "pad_size")
"""Keys of `preprocessor_config.json` for heights and widths of images, in pixels."""
LARGEST_SIDE = 4096
"""Larger than the input of any published classifier."""
RATIOS = (3 / 4, 4 / 3)
"""Aspect ratios of crops (Szegedy et al. 2014, arXiv:1409.4842)."""


@dataclass(frozen=True)
class ImageProcessing:
    """Settings that `read` and `augment` need."""

    processor: BaseImageProcessor
    """Image processor of transformers."""
    size: tuple[int, int]
    """Height and width of the model's input, in pixels."""
    labels: tuple[str, ...]
    options: Options


def load_image_processor(base: Path) -> BaseImageProcessor:
    """The image processor of a base. Raises `UserError` if the base has none."""
    from transformers import AutoImageProcessor, logging

    if not (base / SETTINGS).is_file():
        raise UserError(f"{base} has no {SETTINGS}, so it is not known how images are prepared for it; download the model again")
    check_sizes(base)
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # each version comments on which of two implementations it chose
    with admit(base, image_classifier()) as clean:
        try:
            return AutoImageProcessor.from_pretrained(clean, trust_remote_code=False)
        except Exception as error:  # the versions of transformers check different things and raise different types
            problem = f"{type(error).__name__}: {one_line(error):.200}"
            raise UserError(f"{base / SETTINGS} cannot be used ({problem}); download the model again") from error
        finally:
            logging.set_verbosity(level)


def check_sizes(base: Path) -> None:
    """Raises `UserError` if images would be resized to more pixels than any classifier takes, for which the memory may not suffice."""
    settings = read_object(base / SETTINGS)
    for key in SIZES:
        sides = settings.get(key)
        for side in sides.values() if isinstance(sides, dict) else [sides]:
            if isinstance(side, int | float) and not 0 <= side <= LARGEST_SIDE:
                raise UserError(
                    f"{base / SETTINGS}: {key} has {side}, expected 0 to {LARGEST_SIDE:,} pixels; download the model again, or give another"
                )


def read_normalization(processor: BaseImageProcessor) -> Normalization:
    """The last two steps of a processor: rescaling by a factor, then mean and standard deviation of each channel. Raises `UserError`."""
    factor = processor.rescale_factor if getattr(processor, "do_rescale", False) else 1.0
    if type(factor) not in (int, float) or not math.isfinite(factor):
        raise UserError(f"{SETTINGS}: rescale_factor is {factor!r:.80}, expected a number; download the model again, or give another one")
    if not getattr(processor, "do_normalize", False):
        return Normalization(factor, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return Normalization(factor, read_channels(processor, "image_mean"), read_channels(processor, "image_std"))


def read_channels(processor: BaseImageProcessor, key: str) -> tuple[float, ...]:
    """A number for each channel. Raises `UserError` for anything else."""
    found = getattr(processor, key, None)
    if not isinstance(found, list | tuple) or len(found) != 3 or not all(type(one) in (int, float) and math.isfinite(one) for one in found):
        raise UserError(f"{SETTINGS}: {key} is {found!r:.80}, expected three numbers; download the model again, or give another one")
    return tuple(found)


def find_input_size(processor: BaseImageProcessor, base: Path) -> tuple[int, int]:
    """Height and width that the processor gives to every image. Raises `UserError` if they depend on the image, or if it does more than to
    resize, crop and pad."""
    from PIL import Image

    try:
        views = [prepare_view(processor, Image.new("RGB", size, (255, 0, 0))) for size in ((97, 64), (64, 131))]
    except Exception as error:
        raise UserError(
            f"{base / SETTINGS}: {type(processor).__name__} cannot be used ({one_line(error):.200}); give another model"
        ) from error
    if views[0].shape != views[1].shape:
        raise UserError(
            f"{base / SETTINGS}: images of different shapes stay different ({[*views[0].shape]}, {[*views[1].shape]}), so they cannot be "
            'batched; set "size" to a height and a width'
        )
    return views[0].shape[1], views[0].shape[2]


def prepare_view(processor: BaseImageProcessor, image: Image) -> Tensor:
    """An image as the processor resizes and crops it: [3, H, W] uint8. Raises `ValueError` for other values."""
    found = processor(images=image, do_rescale=False, do_normalize=False, return_tensors="pt")["pixel_values"]
    if found.dim() != 4 or found.shape[:2] != (1, 3):
        raise ValueError(f"it makes tensors of shape {[*found.shape]}, not [1, 3, height, width]")
    pixels = found[0].float().round()
    if pixels.min() < 0 or pixels.max() > 255:
        raise ValueError(f"its pixels are from {float(pixels.min()):g} to {float(pixels.max()):g}, not from 0 to 255")
    return pixels.to(torch.uint8)


def copy_for_crops(image: Image, size: tuple[int, int], swapped: bool) -> Tensor:
    """An image of at most `STORED_AREA` times the pixels of `size`: [3, h, w] uint8. `swapped`: channels in the order blue, green, red."""
    from PIL import Image

    factor = math.sqrt(STORED_AREA * size[0] * size[1] / (image.width * image.height))
    if factor < 1:
        smaller = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        image = image.resize(smaller, Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return (pixels.flip(0) if swapped else pixels).contiguous()


def read_image(row: Row, processing: ImageProcessing, folder: Path) -> Sample:
    """`pixels` [3, H, W] uint8, as the processor prepares the image; `label`, a scalar; and, unless crops are off, `copy` [3, h, w] uint8,
    from which they are taken. Raises `UserError` for a broken image, and for a label that the training data does not have."""
    name, label = read_file_name(row), find_label(row, processing.labels)
    try:
        image = decode_image(resolve_under(folder, name)).image
    except UserError as error:
        raise UserError(f"the image {name!r} {error}") from None
    sample = {"pixels": prepare_view(processing.processor, image), "label": torch.tensor(label)}
    if processing.options.crop_area < 1:
        swapped = bool(getattr(processing.processor, "do_flip_channel_order", False))
        sample["copy"] = copy_for_crops(image, processing.size, swapped)
    return sample


def read_file_name(row: Row) -> str:
    """The path of the image of a row, relative to the data file. Raises `UserError` if there is none."""
    name = row.get("image")
    if not isinstance(name, str) or not name:
        raise UserError(f'"image" must be the path of a file, relative to the data file, found {name!r:.60}')
    return name


def augment(sample: Sample, processing: Any, generator: Generator) -> Sample:
    """The sample with a random crop as `pixels` [3, H, W] uint8, perhaps mirrored, with other brightness and contrast."""
    options: Options = processing.options
    # Always the same number of draws, so that one option does not change what another one draws.
    area, ratio, top, left, mirror, brightness, contrast = torch.rand(7, generator=generator).tolist()
    pixels = sample["pixels"]
    if "copy" in sample:
        pixels = crop(sample["copy"], options.crop_area + area * (1 - options.crop_area), ratio, (top, left), processing.size)
    if options.flip and mirror < 0.5:
        pixels = pixels.flip(2)
    if options.jitter:
        pixels = change_light(pixels, 1 + options.jitter * (2 * brightness - 1), 1 + options.jitter * (2 * contrast - 1))
    return {"pixels": pixels, "label": sample["label"]}


def crop(image: Tensor, area: float, ratio: float, place: tuple[float, float], size: tuple[int, int]) -> Tensor:
    """A part of an image [3, h, w] uint8, resized to `size`. `area`: share of the image. `ratio` and `place` (top, left): in [0, 1)."""
    height, width = image.shape[1:]
    aspect = RATIOS[0] * (RATIOS[1] / RATIOS[0]) ** ratio
    wide = min(width, max(1, round(math.sqrt(area * height * width * aspect))))
    high = min(height, max(1, round(math.sqrt(area * height * width / aspect))))
    top, left = int(place[0] * (height - high + 1)), int(place[1] * (width - wide + 1))
    part = image[:, top : top + high, left : left + wide].unsqueeze(0)
    return functional.interpolate(part, size, mode="bilinear", antialias=True)[0]


def change_light(pixels: Tensor, brightness: float, contrast: float) -> Tensor:
    """uint8 pixels [3, H, W] times `brightness`, then with their distance from the mean times `contrast`."""
    bright = pixels.float() * brightness
    mean = bright.mean()
    return (mean + (bright - mean) * contrast).round().clamp(0, 255).to(torch.uint8)
