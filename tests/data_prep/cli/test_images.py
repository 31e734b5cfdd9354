"""`overtone images` from a folder to rows, again after a kill, and its refusals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from overtone.data_prep import __main__ as data_prep
from overtone.data_prep.cli import images
from overtone.finetune.storage import files
from tests.finetune import fork_server
from tests.recipes.image_classification.tiny_images import LABELS, draw_image


def write_folder(folder: Path, count: int = 4) -> Path:
    for label in LABELS:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            draw_image(label, number).resize((40 + number, 30)).save(folder / label / f"{number}.png")
    return folder


def read_all(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file() and path.name != ".owner"
    }


def test_a_folder_becomes_a_dataset_and_the_same_one_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_folder(tmp_path / "my photos"), tmp_path / "data"
    (source / "red" / "broken.png").write_bytes(b"no image")
    assert data_prep.main(["images", str(source), "--out", str(out), "--val-share", "0.25"]) == 0
    printed = capsys.readouterr().out
    assert "9 training and 3 validation images of 13; 3 labels" in printed and "rejected  cannot be decoded: 1" in printed
    assert f"--recipe image_classification --data.train {out}/train.jsonl --data.val {out}/val.jsonl" in printed
    rows = [json.loads(line) for name in ("train", "val") for line in (out / f"{name}.jsonl").read_text().splitlines()]
    assert all((out / row["image"]).read_bytes() == (source / row["source"]).read_bytes() for row in rows)
    assert (out / "report.html").is_file() and json.loads((out / "summary.json").read_text())["val"] == 3
    before = read_all(out)
    assert images.main([str(source), "--out", str(out), "--val-share", "0.25"]) == 0
    assert read_all(out) == before


def prepare_and_die(argv: list[str], number: int) -> None:
    """On a process of the fork server: SIGKILL at a disk operation."""
    seen = []

    def strike(operation: str, path: Path) -> None:
        seen.append(path)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with files.watch(strike):
        images.main(argv)


@pytest.mark.parametrize("number", [5, 60, 75])
def test_a_killed_run_is_repeated_with_the_same_result(number: int, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "photos")
    assert images.main([str(source), "--out", str(tmp_path / "whole")]) == 0
    argv = [str(source), "--out", str(tmp_path / "data")]
    with pytest.raises(AssertionError):
        fork_server.run_ranks(1, prepare_and_die, argv, number)
    assert not (tmp_path / "data" / "train.jsonl").exists()
    assert images.main(argv) == 0
    found, expected = read_all(tmp_path / "data"), read_all(tmp_path / "whole")
    assert found.keys() == expected.keys() and all(found[name] == expected[name] for name in found if name != "report.html")


def test_mistakes_are_refused_with_the_next_action(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_folder(tmp_path / "photos", 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    cases = {
        ("--out", str(tmp_path / "mine")): "was not created by overtone images",
        ("--out", str(source / "data")): "is inside the source",
        ("--out", str(tmp_path)): "would overwrite the source",
        ("--out", str(tmp_path / "new"), "--val-share", "1"): "--val-share 1.0: expected a share",
    }
    for words, message in cases.items():
        assert images.main([str(source), *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert images.main([str(tmp_path / "empty"), "--out", str(tmp_path / "new")]) == 2
    assert "a classifier needs images of two labels or more; usable labels: none" in capsys.readouterr().err
