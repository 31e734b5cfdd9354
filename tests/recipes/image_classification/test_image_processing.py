"""Samples are what the stock image processor makes; crops are random, and only that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MobileViTImageProcessor, ViTImageProcessor

from overtone.finetune.data import sample_serialization
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.image_classification import image_processing
from overtone.recipes.image_classification.image_processing import ImageProcessing, augment, read_image
from overtone.recipes.image_classification.model import tiny_checkpoint
from overtone.recipes.image_classification.options import Options
from tests.recipes.image_classification.tiny_images import draw_image, write_images

STOCK = ViTImageProcessor(**{key: value for key, value in tiny_checkpoint.PROCESSOR.items() if key != "image_processor_type"})


def processing(**options: Any) -> ImageProcessing:
    return ImageProcessing(STOCK, (16, 16), ("blue", "green", "red"), Options(**options))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sample_normalized_is_what_the_stock_processor_makes(tmp_path: Path) -> None:
    write_images(tmp_path)
    sample = read_image({"image": "images/red-1.png", "label": "red"}, processing(), tmp_path)
    assert sample["pixels"].dtype == torch.uint8 and int(sample["label"]) == 2 and sample["copy"].shape[0] == 3
    rule = image_processing.read_normalization(STOCK)
    values = (sample["pixels"].float() * rule.factor - torch.tensor(rule.mean).view(3, 1, 1)) / torch.tensor(rule.std).view(3, 1, 1)
    expected = STOCK(image_processing.decode_image(tmp_path / "images" / "red-1.png").image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-5)
    assert "copy" not in read_image({"image": "images/red-1.png", "label": "red"}, processing(crop_area=1.0), tmp_path)
    decoded = sample_serialization.decode(bytearray(sample_serialization.encode(sample)))
    assert all(torch.equal(decoded[name], value) for name, value in sample.items())


def test_the_copy_for_crops_is_bounded_and_not_enlarged() -> None:
    large = image_processing.copy_for_crops(draw_image("red", 1, (400, 100)), (16, 16), False)
    assert large.shape[1] * large.shape[2] <= 2.2 * 16 * 16 and large.shape[2] == pytest.approx(4 * large.shape[1], rel=0.1)
    small = image_processing.copy_for_crops(draw_image("red", 1, (10, 8)), (16, 16), True)
    assert small.shape == (3, 8, 10)
    assert torch.equal(small.flip(0), image_processing.copy_for_crops(draw_image("red", 1, (10, 8)), (16, 16), False))


def test_crops_have_the_order_of_channels_of_the_processor(tmp_path: Path) -> None:
    """MobileViT's processor puts blue first."""
    write_images(tmp_path)
    stock = MobileViTImageProcessor(size={"height": 16, "width": 16}, do_center_crop=False, do_flip_channel_order=True)
    turned = ImageProcessing(stock, (16, 16), ("blue", "green", "red"), Options())
    sample = read_image({"image": "images/red-1.png", "label": "red"}, turned, tmp_path)
    for pixels in (sample["pixels"], sample["copy"], augment(sample, turned, seeded(1))["pixels"]):
        assert pixels[2].float().mean() > 2 * pixels[0].float().mean()


def test_the_generator_alone_decides_the_crop(tmp_path: Path) -> None:
    write_images(tmp_path)
    sample = read_image({"image": "images/red-2.png", "label": "red"}, processing(), tmp_path)
    before = {name: value.clone() for name, value in sample.items()}
    one, same, other = (augment(sample, processing(jitter=0.3), seeded(seed))["pixels"] for seed in (5, 5, 6))
    assert torch.equal(one, same) and not torch.equal(one, other) and one.shape == (3, 16, 16)
    assert all(torch.equal(sample[name], value) for name, value in before.items())


def test_without_options_the_image_is_as_in_an_evaluation(tmp_path: Path) -> None:
    write_images(tmp_path)
    off = processing(crop_area=1.0, flip=False)
    sample = read_image({"image": "images/red-2.png", "label": "red"}, off, tmp_path)
    assert torch.equal(augment(sample, off, seeded(1))["pixels"], sample["pixels"])
    mirrored = [
        torch.equal(augment(sample, processing(crop_area=1.0), seeded(seed))["pixels"], sample["pixels"].flip(2)) for seed in range(60)
    ]
    assert 15 < sum(mirrored) < 45


def test_crops_have_the_area_and_the_place_that_was_drawn() -> None:
    image = torch.arange(100, dtype=torch.uint8).view(1, 10, 10).expand(3, 10, 10)
    whole = image_processing.crop(image, 1.0, 0.5, (0.0, 0.0), (10, 10))
    assert torch.equal(whole, image)
    corner = image_processing.crop(image, 0.25, 0.5, (0.999, 0.999), (5, 5))
    assert torch.equal(corner, image[:, 5:, 5:])
    wide, high = (image_processing.crop(image, 0.25, ratio, (0, 0), (50, 50)).float() for ratio in (1.0, 0.0))
    assert (wide[0, 0, -1] - wide[0, 0, 0]) > (high[0, 0, -1] - high[0, 0, 0])


def test_light_changes_around_the_mean() -> None:
    pixels = torch.tensor([50, 150], dtype=torch.uint8).expand(3, 2, 2)
    assert image_processing.change_light(pixels, 1.1, 1.0)[0, 0].tolist() == [55, 165]
    assert image_processing.change_light(pixels, 1.0, 0.5)[0, 0].tolist() == [75, 125]
    assert image_processing.change_light(pixels, 2.0, 1.0)[0, 0].tolist() == [100, 255]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_resize": False}, "stay different"),
        ({"size": {"height": "x"}}, "cannot be used"),
        ({"size": {"height": 10**6, "width": 10**6}}, r"preprocessor_config.json: size has 1000000, expected 0 to 4,096 pixels; download"),
        ({"crop_size": 30_000}, "crop_size has 30000"),
    ],
)
def test_a_processor_that_does_not_fit_is_explained(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    base = tiny_checkpoint.build(tmp_path / "base")
    files.write_json(base / image_processing.SETTINGS, {**tiny_checkpoint.PROCESSOR, **changes})
    with pytest.raises(UserError, match=message):
        image_processing.find_input_size(image_processing.load_image_processor(base), base)


@pytest.mark.parametrize("changes", [{"image_mean": "x"}, {"image_mean": ["a", "b", "c"]}, {"image_std": [0.5]}, {"rescale_factor": None}])
def test_a_normalization_that_is_none_is_an_error_of_its_key(changes: dict[str, Any], tmp_path: Path) -> None:
    """Found by hostile model folders."""
    base = tiny_checkpoint.build(tmp_path / "base")
    files.write_json(base / image_processing.SETTINGS, {**tiny_checkpoint.PROCESSOR, **changes})
    with pytest.raises(UserError, match=rf"preprocessor_config.json.* ({next(iter(changes))}|cannot be used)"):
        image_processing.read_normalization(image_processing.load_image_processor(base))


def test_code_that_comes_with_a_processor_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tiny_checkpoint.build(tmp_path / "base")
    (base / "evil.py").write_text("raise SystemExit('run')")
    own = {**tiny_checkpoint.PROCESSOR, "auto_map": {"AutoImageProcessor": "evil.Processor"}}
    files.write_json(base / image_processing.SETTINGS, own)
    assert image_processing.find_input_size(image_processing.load_image_processor(base), base) == (16, 16)
    assert "ignored auto_map" in capsys.readouterr().err
