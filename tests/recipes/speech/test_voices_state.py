"""The recipe state of a speech model, and its cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from finetune.config import resolve
from finetune.errors import UserError
from recipes.csm.options import Options
from recipes.speech.voices_state import load_state, make_voices_state, store_state

SPEAKERS = [{"name": "bob", "clips": 2, "seconds": 3.0, "id": 1}, {"name": "ann", "clips": 3, "seconds": 1.0, "id": 0}]


def test_the_state_names_data_and_base_without_folders_of_this_machine(tmp_path: Path) -> None:
    train = tmp_path / "me" / "train.jsonl"
    train.parent.mkdir()
    train.write_text('{"text": "a"}\n')
    settings = [("data.train", json.dumps(str(train))), ("model.source", json.dumps(str(tmp_path / "base"))), ("model.revision", "main")]
    state = make_voices_state(resolve("csm", Options, [], settings), SPEAKERS)
    sha256 = hashlib.sha256(train.read_bytes()).hexdigest()
    assert state == {
        "speakers": SPEAKERS,
        "data": {"name": "me/train.jsonl", "sha256": sha256, "clips": 5},
        "base": {"name": "base", "revision": "main"},
    }
    assert [*state] == ["speakers", "data", "base"] and [*state["data"]] == ["name", "sha256", "clips"], "the order of voices.json"


def test_the_cache_gives_back_the_state_or_names_its_file(tmp_path: Path) -> None:
    config = resolve("csm", Options, [], [("run.dir", json.dumps(str(tmp_path / "run")))])
    with pytest.raises(UserError, match=r"run/cache/speakers.json is missing or damaged; .* start the training again"):
        load_state(config)
    store_state(config, {"speakers": SPEAKERS})
    assert load_state(config) == {"speakers": SPEAKERS}
    (tmp_path / "run" / "cache" / "speakers.json").write_text("{")
    with pytest.raises(UserError, match="missing or damaged"):
        load_state(config)
