"""`overtone generate` names the labels of images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overtone.finetune.cli import generate
from tests.recipes.image_classification.tiny_images import draw_image


def test_images_are_classified_with_probabilities(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("red", "blue"):
        draw_image(label, 77, (50, 40)).save(tmp_path / f"a {label}.png")
    places = [str(tmp_path / f"a {label}.png") for label in ("red", "blue")]
    assert generate.main(["--model", str(exported), "--image", *places, "--top", "2"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()[-2:]
    assert re.search(r"a red\.png: red \d+\.\d%, \w+ \d+\.\d%$", lines[0]) and "a blue.png: blue " in lines[1]


def test_mistakes_are_explained_before_the_model_is_loaded(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    for words, message in (
        (["--image", str(tmp_path / "gone.png")], "no such file"),
        (["--image", str(tmp_path / "notes.txt")], "cannot be decoded"),
    ):
        assert generate.main(["--model", str(exported), *words]) == 2
        assert message in capsys.readouterr().err
    assert generate.main(["--model", str(exported), "--image", "x.png", "--top", "0"]) == 2
    assert "--top 0" in capsys.readouterr().err
