"""The recipe state of a speech model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.recipes.csm.options import Options
from overtone.recipes.speech.voices_json_content import describe_base, describe_training_data, shorten_source
from overtone.recipes.speech.voices_json_schema import TrainedSpeaker

SPEAKERS = [TrainedSpeaker(name="bob", clips=2, seconds=3.0), TrainedSpeaker(name="ann", clips=3, seconds=1.0)]


def test_the_state_names_data_and_base_without_folders_of_this_machine(tmp_path: Path) -> None:
    train = tmp_path / "me" / "train.jsonl"
    train.parent.mkdir()
    train.write_text('{"text": "a"}\n')
    settings = [("data.train", json.dumps(str(train))), ("model.source", json.dumps(str(tmp_path / "base"))), ("model.revision", "main")]
    config = resolve("csm", Options, [], settings)
    sha256 = hashlib.sha256(train.read_bytes()).hexdigest()
    assert describe_training_data(config.data, SPEAKERS).model_dump() == {"name": "me/train.jsonl", "sha256": sha256, "clips": 5}
    assert describe_base(config.model).model_dump() == {"name": "base", "revision": "main"}


@pytest.mark.parametrize(
    ("source", "shown"), [("Qwen/Base", "Qwen/Base"), ("./nano", "nano"), ("runs/tiny/nano", "nano"), ("/home/me/private/base/", "base")]
)
def test_the_base_name_has_no_local_folders(source: str, shown: str) -> None:
    assert shorten_source(source) == shown


def test_a_local_folder_that_looks_like_a_hub_name_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert shorten_source("Qwen/Base") == "Base"
