"""The review inside the studio hears, decides and writes as that of `overtone review`, for datasets of the studio's folder alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.pages import voice_dataset_loader
from overtone.data_prep.pages.voice_dataset_loader import Dataset
from overtone.finetune.errors import UserError
from overtone.studio.page_interface import Studio
from overtone.studio.pages import dataset_review
from overtone.studio.pages.dataset_review import OpenReviews, make_address
from tests.asgi import App
from tests.data_prep import example_clips

FOLDER = "data/a ü"
ADDRESS = make_address(FOLDER)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset of one clip; how a dataset is read is tested with its reader."""
    folder = tmp_path / FOLDER
    (folder / "clips").mkdir(parents=True)
    soundfile.write(folder / "clips" / "c0.flac", np.random.default_rng(0).uniform(-0.1, 0.1, 24_000), 24_000)
    (folder / "train.jsonl").write_text("{}\n")
    known = example_clips.dataset(folder, [example_clips.clip("c0", snr_db=16.0)], [])

    def read_dataset(wanted: Path) -> Dataset:
        if not (wanted / "train.jsonl").is_file():
            raise UserError(f"{wanted} is no dataset")
        return known

    monkeypatch.setattr(voice_dataset_loader, "read_dataset", read_dataset)
    return tmp_path


def test_a_clip_is_heard_and_decided(app: App, place: Path) -> None:
    page = app.ask("GET", ADDRESS)
    assert page.status == 200 and b"Back to the dataset" in page.body and b"data%2Fa+%C3%BC" in page.body
    assert page.headers["content-security-policy"].count("default-src") == 1
    id, query = "c0", b"id=c0"
    assert id == json.loads(app.ask("GET", f"{ADDRESS}clip", query=query).body)["id"]
    assert app.ask("GET", f"{ADDRESS}sound", query=query).status == 200
    assert app.ask("GET", f"{ADDRESS}picture", query=query).body.startswith(b"\x89PNG")
    call = {"id": id, "action": "reject", "text": "", "note": ""}
    assert app.ask("POST", f"{ADDRESS}decision", json.dumps(call).encode()).status == 200
    assert json.loads((place / FOLDER / "review.jsonl").read_text())["action"] == "reject"
    assert app.ask("POST", f"{ADDRESS}decision", json.dumps({**call, "action": "delete"}).encode()).status == 400


@pytest.mark.parametrize("folder", ["..", "data", ".studio", "/etc", "none", "a\0b"])
def test_other_folders_are_refused(folder: str, app: App) -> None:
    assert app.ask("GET", make_address(folder)).status == 400


@pytest.mark.parametrize(
    "path", ["/review/a/", "/review/=/", "/review/", f"{ADDRESS}train.jsonl", f"{ADDRESS}assets/page.css", f"{ADDRESS}../x"]
)
def test_nothing_else_is_answered(path: str, app: App) -> None:
    assert app.ask("GET", path).status in (400, 404)


def test_a_dataset_that_was_prepared_again_is_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviews = OpenReviews(Studio(place, "127.0.0.1"))
    first = reviews.find_app(FOLDER)
    assert reviews.find_app(FOLDER) is first
    os.utime(place / FOLDER / "train.jsonl", (1, 1))
    second = reviews.find_app(FOLDER)
    assert second is not first
    monkeypatch.setattr(dataset_review, "MOST", 1)
    (place / "b").mkdir()
    (place / "b" / "train.jsonl").touch()
    other = reviews.find_app("b")
    assert reviews.find_app("b") is other and reviews.find_app(FOLDER) is not second
