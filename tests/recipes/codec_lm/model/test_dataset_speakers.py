"""Tests of `overtone.recipes.codec_lm.model.dataset_speakers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.model import dataset_speakers
from tests.recipes.codec_lm import tiny_models

FAMILY = tiny_models.FAMILY


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return tiny_models.configure(tmp_path)


def test_speakers_are_counted_by_name_with_their_language(config: Any) -> None:
    rows = [*tiny_models.make_rows(), {**tiny_models.make_rows()[0], "speaker": "ANN", "language": "de"}]
    tiny_models.write_rows(config.data.train, rows)
    found = dataset_speakers.collect_speakers(config.data, config.options.speaker, FAMILY)
    assert list(found) == ["ann", "bob"]
    assert (found["ann"].clips, found["ann"].frames, found["bob"].frames) == (3, 6 + 9 + 6, 7 + 10)
    assert found["ann"].languages == {"english": 2, "german": 1}
    state = dataset_speakers.make_recipe_state(config, FAMILY, found, "d")
    assert state.speakers[0].model_dump() == {"name": "ann", "language": "english", "clips": 3, "seconds": round(21 * 64 / 24000, 2)}
    assert state.data.name.endswith("/train.jsonl") and state.family.codebook_size == 16


def test_bad_rows_are_refused_with_file_and_line(config: Any) -> None:
    rows = tiny_models.make_rows()
    rows[1]["audio_codes"][3] = [1] * 16
    tiny_models.write_rows(config.data.train, rows)
    with pytest.raises(UserError, match=r"train.jsonl(:| line )2.*frame 3: .* is not a list of 7 codes"):
        dataset_speakers.collect_speakers(config.data, config.options.speaker, FAMILY)


def test_a_speaker_who_is_only_in_the_validation_data_is_refused(tmp_path: Path) -> None:
    tiny_models.write_rows(tmp_path / "val.jsonl", tiny_models.make_rows(("Eve",)))
    config = tiny_models.configure(tmp_path, ("data.val", str(tmp_path / "val.jsonl")))
    with pytest.raises(UserError, match="speaker 'eve' is not trained: the training data has only ann, bob"):
        dataset_speakers.collect_speakers(config.data, config.options.speaker, FAMILY)
