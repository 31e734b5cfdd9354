"""Decodes each image once, and keeps what was found: a second run reads only the bytes of images that the first one examined."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NotRequired, TypedDict

from overtone.data_prep.images.image_decoding import DecodedImage, decode_image
from overtone.data_prep.images.image_sources import FoundImage
from overtone.data_prep.images.perceptual_hash import compute_hash, make_gray_copy
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.strict_json import one_line

IMAGES, STAGES = "images", ".stages"
"""Folders of the dataset: the images under the digest of their bytes, and what was found in each."""
VERSION = 1
"""Version of the stored results: increase it when decoding or hashing changes."""
AT_ONCE = 64
"""Images that are read and decoded at a time, by all cores."""
ENDINGS = {"PNG": ".png", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif", "TIFF": ".tif", "PPM": ".ppm"}
MOST_BYTES = 1_000_000_000
"""Maximum bytes of one file."""


@dataclass(frozen=True)
class ExaminedImage:
    """An image that was decoded, or the reason why it was not."""

    place: str
    label: str | None
    split: str
    digest: str = ""
    """SHA-256 of its bytes."""
    file: str = ""
    """Path in the dataset."""
    width: int = 0
    height: int = 0
    hash: int = 0
    copy: bytes = b""
    """Gray copy of `perceptual_hash.make_gray_copy`."""
    changes: tuple[str, ...] = ()
    problem: str = ""


class ImageFacts(TypedDict):
    """Content of a stage file: what was found in an image, or its problem."""

    version: int
    problem: str
    ending: NotRequired[str]
    width: NotRequired[int]
    height: NotRequired[int]
    hash: NotRequired[str]
    """In hexadecimal."""
    copy: NotRequired[str]
    """Gray copy in base64."""
    changes: NotRequired[list[str]]


def examine_images(found: Iterable[FoundImage], out: Path) -> Iterator[ExaminedImage]:
    """Examine images in their order, with all cores, and copy those that can be decoded into the dataset `out`."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for group in _divide(found):
            yield from pool.map(partial(examine_image, out), group)


def _divide(found: Iterable[FoundImage]) -> Iterator[list[FoundImage]]:
    """Yield groups of `AT_ONCE` images, so that the bytes of a table's images are not all in memory."""
    group: list[FoundImage] = []
    for one in found:
        group.append(one)
        if len(group) == AT_ONCE:
            yield group
            group = []
    yield group


def examine_image(out: Path, found: FoundImage) -> ExaminedImage:
    """Decode one image, unless an earlier run did."""
    result = partial(ExaminedImage, found.place, found.label, found.split)
    if found.problem:
        return result(problem=found.problem)
    try:
        content = found.content if isinstance(found.content, bytes) else read_file(found.content)
    except UserError as error:
        return result(problem=str(error))
    digest = hashlib.sha256(content).hexdigest()
    stage = out / STAGES / digest[:2] / f"{digest}.json"
    facts = _read_stage(stage)
    if facts is None:
        facts = measure_image(content)
        files.write_bytes(stage, files.json_bytes(facts))
    if facts["problem"]:
        return result(digest=digest, problem=facts["problem"])
    file = f"{IMAGES}/{digest[:2]}/{digest[:32]}{facts['ending']}"
    if not (out / file).is_file() or (out / file).stat().st_size != len(content):
        files.write_bytes(out / file, content)
    return result(
        digest=digest,
        file=file,
        width=facts["width"],
        height=facts["height"],
        hash=int(facts["hash"], 16),
        copy=base64.b64decode(facts["copy"]),
        changes=(*found.changes, *facts["changes"]),
    )


def read_file(path: Path) -> bytes:
    """Return the bytes of an image file. Raises `UserError`."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"the file has {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
        return input_files.read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise UserError(f"cannot be read ({one_line(error.strerror or error)})") from None


def measure_image(content: bytes) -> ImageFacts:
    """Decode an image, and return what was found."""
    try:
        decoded: DecodedImage = decode_image(content)
    except UserError as error:
        return {"version": VERSION, "problem": str(error)}
    image = decoded.image
    return {
        "version": VERSION,
        "problem": "",
        "ending": ENDINGS.get(decoded.format, ".jpg"),
        "width": image.width,
        "height": image.height,
        "hash": f"{compute_hash(image):016x}",
        "copy": base64.b64encode(make_gray_copy(image)).decode(),
        "changes": list(decoded.changes),
    }


def _read_stage(path: Path) -> ImageFacts | None:
    """Return the result of an earlier run; None without a file of this version."""
    try:
        found: ImageFacts = strict_json.loads(input_files.read_bytes(path))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("version") == VERSION else None
