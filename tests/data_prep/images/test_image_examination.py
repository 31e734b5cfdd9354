"""Each image is decoded once, and copied unchanged under the digest of its bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from overtone.data_prep.images import image_examination
from overtone.data_prep.images.image_examination import AT_ONCE, examine_images
from overtone.data_prep.images.image_sources import FoundImage
from tests.data_prep.images.test_image_sources import png, put


def test_images_are_copied_and_measured_in_their_order(tmp_path: Path) -> None:
    path = put(tmp_path / "a.png", png(1))
    found = [
        FoundImage("a", path, "x"),
        FoundImage("b", b"broken", "y"),
        FoundImage("c", b"", None, problem="none"),
        FoundImage("d", png(2), "x"),
    ]
    one, broken, none, other = examine_images(found, tmp_path / "out")
    assert (tmp_path / "out" / one.file).read_bytes() == png(1) and one.digest == hashlib.sha256(png(1)).hexdigest()
    assert (one.width, one.height, one.label) == (6, 6, "x") and len(one.copy) == 256 and one.file != other.file
    assert "cannot be decoded" in broken.problem and none.problem == "none" and not broken.file
    gone = FoundImage("e", tmp_path / "gone.png", "x")
    assert "cannot be read" in next(iter(examine_images([gone], tmp_path / "out"))).problem


def test_a_second_run_does_not_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [FoundImage(str(number), png(number), "x") for number in range(AT_ONCE + 3)] + [FoundImage("z", b"broken", "x")]
    first = list(examine_images(found, tmp_path))
    (tmp_path / first[0].file).unlink()
    (tmp_path / first[1].file).write_bytes(b"torn")

    def never(_: bytes) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(image_examination, "decode_image", never)
    assert list(examine_images(found, tmp_path)) == first and len(first) == AT_ONCE + 4
    assert (tmp_path / first[0].file).read_bytes() == png(0) and (tmp_path / first[1].file).read_bytes() == png(1)


def test_another_version_decodes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = examine_images([FoundImage("a", png(), "x")], tmp_path)
    stage = next((tmp_path / ".stages").glob("*/*.json"))
    for content in (stage.read_text().replace('"version": 1', '"version": 0').replace("6", "7"), "{", "[]"):
        stage.write_text(content)
        assert list(examine_images([FoundImage("a", png(), "x")], tmp_path)) == [first]
