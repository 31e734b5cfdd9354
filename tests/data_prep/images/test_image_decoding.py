"""Every kind of image file becomes upright opaque RGB, and nothing fills the memory."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from overtone.data_prep.images import image_decoding
from overtone.data_prep.images.image_decoding import ORIENTATION, decode_image
from overtone.finetune.errors import UserError


def encode(image: Any, form: str = "PNG", **settings: Any) -> bytes:
    written = BytesIO()
    image.save(written, form, **settings)
    return written.getvalue()


def half_red(mode: str = "RGB") -> Any:
    """8 × 6 pixels: the left half is red, the right half white."""
    pixels = np.full((6, 8, 3), 255, np.uint8)
    pixels[:, :4] = (255, 0, 0)
    return Image.fromarray(pixels).convert(mode)


def test_a_plain_image_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode(half_red()))
    found = decode_image(tmp_path / "a.png")
    assert found.changes == () and found.format == "PNG" and np.array_equal(np.asarray(found.image), np.asarray(half_red()))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    found = decode_image(encode(half_red(), "PNG", exif=exif))
    assert found.image.size == ((8, 6) if orientation < 5 else (6, 8))
    assert found.changes == (() if orientation == 1 else ("turned by EXIF orientation",))
    corner = np.asarray(found.image)[0, 0].tolist()
    assert corner == ([255, 0, 0] if orientation in (1, 4, 5, 6) else [255, 255, 255])


def test_modes_are_converted_and_said() -> None:
    clear = Image.new("RGBA", (8, 6), (0, 0, 0, 0))
    palette = half_red().convert("P", palette=Image.Palette.ADAPTIVE)
    cases = {
        "grayscale to RGB": (encode(half_red("L")), (76, 255)),
        "transparency over white": (encode(clear), (255, 255)),
        "CMYK to RGB": (encode(half_red("CMYK"), "JPEG", quality=95), None),
        "palette to RGB": (encode(palette), (255, 255)),
        "16 bits to 8": (encode(Image.fromarray(np.full((6, 8), 0x4000, np.uint16))), (64, 64)),
    }
    for change, (content, red) in cases.items():
        found = decode_image(content)
        assert found.image.mode == "RGB" and found.changes == (change,)
        pixels = np.asarray(found.image)
        assert red is None or (pixels[0, 0, 0], pixels[0, 7, 0]) == red
    cmyk = np.asarray(decode_image(cases["CMYK to RGB"][0]).image).astype(int)
    assert abs(cmyk[2, 1] - (255, 0, 0)).max() < 12


def test_the_first_frame_of_an_animation_is_read() -> None:
    frames = [half_red(), Image.new("RGB", (8, 6), "blue")]
    found = decode_image(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert "first frame of several" in found.changes and np.asarray(found.image)[0, 0].tolist() == [255, 0, 0]


def png_of(width: int, height: int) -> bytes:
    """A valid PNG of a few bytes that claims this size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    with pytest.raises(UserError, match="has 12,000 × 12,000 pixels, more than 100,000,000 in all"):
        decode_image(png_of(12_000, 12_000))
    with pytest.raises(UserError, match="has more than 100,000,000 pixels"):
        decode_image(png_of(60_000, 60_000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be decoded"),
        (b"no image", "cannot be decoded"),
        (encode(half_red())[:-30], "cannot be decoded"),
        (encode(half_red(), "JPEG")[:-200], "cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be decoded"),
        (encode(Image.new("RGB", (3, 9))), "3 × 9 pixels, and needs 4"),
        (encode(Image.new("F", (9, 9)), "TIFF"), "32 bits"),
    ],
)
def test_what_cannot_be_used_is_a_clear_error(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        decode_image(content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone.png: no such file"):
        decode_image(tmp_path / "gone.png")


def test_every_format_by_name_has_a_suffix() -> None:
    assert {Image.registered_extensions()[suffix] for suffix in image_decoding.SUFFIXES} <= {*image_decoding.FORMATS}
