"""Speakers of a dataset and their numbers in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.dataset.codec_metadata import describe_codec
from overtone.finetune.errors import UserError
from overtone.recipes.csm.model import tiny_checkpoint
from overtone.recipes.csm.model.dataset_speakers import MOST_SPEAKERS, assign_numbers
from overtone.recipes.csm.recipe import RECIPE
from overtone.recipes.csm.state import CsmState
from overtone.recipes.recipe_state_file import load_state
from tests.recipes.csm.tiny_csm import make_config, make_rows, write_rows


def write_known(folder: Path, speakers: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "voices.json").write_text(json.dumps({"speakers": speakers}))
    return folder


def test_numbers_follow_the_order_of_names(tmp_path: Path) -> None:
    assert assign_numbers(tmp_path, ["ann", "bob", "cid"]) == {"ann": 0, "bob": 1, "cid": 2}


def test_a_base_that_is_an_export_keeps_its_numbers(tmp_path: Path) -> None:
    base = write_known(tmp_path, [{"name": "bob", "id": 1}, {"name": "zoe", "id": 0}])
    assert assign_numbers(base, ["ann", "bob", "cid"]) == {"ann": 2, "bob": 1, "cid": 3, "zoe": 0}, "zoe is still in the weights"


@pytest.mark.parametrize("speakers", [[{"name": "bob"}], [{"name": "bob", "id": "1"}], "bob"], ids=["no-id", "text-id", "no-list"])
def test_a_damaged_list_of_speakers_is_refused(speakers: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"voices.json does not list speakers with their numbers"):
        assign_numbers(write_known(tmp_path, speakers), ["ann"])


def test_more_speakers_than_numbers_are_refused(tmp_path: Path) -> None:
    names = [f"file{number:04d}" for number in range(MOST_SPEAKERS + 1)]
    assert len(assign_numbers(tmp_path, names[:-1])) == MOST_SPEAKERS
    with pytest.raises(UserError, match="1001 speakers, and the prompt has numbers for 1000 .*'file1000'.* check that `speaker`"):
        assign_numbers(tmp_path, names)


def test_the_state_is_stored_for_every_rank_and_identifies_data_and_base(tiny: Path, tmp_path: Path) -> None:
    config = make_config(tiny, write_rows(tmp_path / "mine" / "train.jsonl", make_rows(["Bob", "Ann"])))
    RECIPE.prepare(config)
    state = load_state(config.run.dir, CsmState)
    assert state.as_json()["speakers"] == [
        {"name": "ann", "id": 0, "clips": 2, "seconds": 1.68},
        {"name": "bob", "id": 1, "clips": 2, "seconds": 1.2},
    ]
    assert (state.base.name, state.base.revision) == ("tiny", None)
    assert state.data.name == "mine/train.jsonl" and len(state.data.sha256) == 64 and state.data.clips == 4
    assert RECIPE.load(config).state == state


def test_a_missing_cache_is_an_error(tiny: Path, tmp_path: Path) -> None:
    config = make_config(tiny, write_rows(tmp_path / "train.jsonl", make_rows(["Ann"])))
    with pytest.raises(UserError, match=r"recipe_state.json is missing or damaged"):
        RECIPE.load(config)


def test_bad_rows_are_reported_with_file_and_line_before_training(tiny: Path, tmp_path: Path) -> None:
    """All codes of another model, such as the 16 codebooks of Qwen3-TTS, are one line."""
    rows = [{**row, "audio_codes": [[1] * 16] * 3} for row in make_rows(["Ann"])]
    config = make_config(tiny, write_rows(tmp_path / "train.jsonl", rows))
    with pytest.raises(UserError, match=r"train.jsonl: all 2 rows: audio_codes, frame 0: .* is not a list of 4 codes"):
        RECIPE.prepare(config)


def test_codes_of_another_codec_are_refused_though_they_look_right(tiny: Path, tmp_path: Path) -> None:
    """Codebooks and codes are as many, but the codes mean other sounds; an export has the codec of its base, so it is accepted."""
    train = write_rows(tmp_path / "train.jsonl", make_rows(["Ann"]))
    other = open_codec(str(tiny_checkpoint.build(tmp_path / "other", seed=1)))
    record = {"model": "other/csm", **describe_codec(other, other.digest())}
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes" / "summary.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"train.jsonl: its codes were made with other/csm, whose codec differs .* overtone codes"):
        RECIPE.prepare(make_config(tiny, train))
    RECIPE.prepare(make_config(tmp_path / "other", train))
    (tmp_path / "codes" / "summary.json").write_text(json.dumps({**record, "codec_digest": open_codec(str(tiny)).digest()}))
    RECIPE.prepare(make_config(tiny, train))


def test_a_speaker_only_in_the_validation_data_is_refused(tiny: Path, tmp_path: Path) -> None:
    val = write_rows(tmp_path / "val.jsonl", make_rows(["Zoe"]))
    config = make_config(tiny, write_rows(tmp_path / "train.jsonl", make_rows(["Ann"])), ("data.val", json.dumps(str(val))))
    with pytest.raises(UserError, match=r"val.jsonl: all 2 rows: speaker 'zoe' is not trained"):
        RECIPE.prepare(config)


def test_the_speaker_of_rows_without_one_is_an_option(tiny: Path, tmp_path: Path) -> None:
    rows = [{**row, "speaker": None} for row in make_rows(["Ann"])]
    config = make_config(tiny, write_rows(tmp_path / "train.jsonl", rows), ("options.speaker", "Me"))
    RECIPE.prepare(config)
    assert load_state(config.run.dir, CsmState).numbers() == {"me": 0}
