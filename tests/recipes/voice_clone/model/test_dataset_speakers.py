"""Speakers in the dataset: counts, reference clips, rows of the embedding table, and bad rows reported by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import Config, MixedFile
from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.model import config_factory
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds
from overtone.recipes.voice_clone.model.dataset_speakers import (
    DatasetSpeaker,
    assign_embedding_rows,
    collect_speakers,
    describe_renamed,
    make_recipe_state,
)
from overtone.recipes.voice_clone.options import Options

IDS = TokenIds.from_config(config_factory.make_released_config("0.6B"))
CODES = [[1] * 16] * 25


def collect_from(config: Config[Options]) -> list[DatasetSpeaker]:
    return collect_speakers(config.data, config.options.speaker, IDS)


def collect(folder: Path, corpus: Any, rows: list[dict[str, Any]], *overrides: tuple[str, str]) -> list[DatasetSpeaker]:
    return collect_from(corpus(folder, rows).config(folder, *overrides))


def test_clips_frames_and_languages_are_counted_per_speaker(tmp_path: Path, corpus: Any) -> None:
    rows = [
        {"audio": "low.flac", "text": "a", "speaker": "Zoe", "language": "en", "audio_codes": CODES},
        {"audio": "high.flac", "text": "b", "speaker": "zoe ", "language": "German", "audio_codes": CODES * 2},
        {"audio": "high.flac", "text": "c", "speaker": "ZOE", "language": "english", "audio_codes": CODES},
        {"audio": "low.flac", "text": "d", "speaker": "Abe", "audio_codes": CODES},
        {"audio": "low.flac", "text": "d", "speaker": "Abe", "audio_codes": CODES, "time_shift": 0.04},  # a copy is no more speech
    ]
    abe, zoe = collect(tmp_path, corpus, rows)
    assert (abe.name, abe.clips, abe.frames, abe.language) == ("abe", 1, 25, None)
    assert (zoe.name, zoe.clips, zoe.frames, zoe.language) == ("zoe", 3, 100, "english")
    assert [path.name for path in zoe.select_references(8)] == ["high.flac", "low.flac"]  # its longest clip first, each once
    assert [path.name for path in zoe.select_references(1)] == ["high.flac"]


def test_the_speakers_of_a_mixture_have_clips_in_the_folders_of_their_files(tmp_path: Path, corpus: Any) -> None:
    config = corpus(tmp_path, [{"audio": "low.flac", "text": "a", "speaker": "Abe", "audio_codes": CODES}]).config(tmp_path)
    assert isinstance(config.data.train, Path)
    other = tmp_path / "other" / "train.jsonl"
    other.parent.mkdir()
    other.write_text(json.dumps({"audio": "high.flac", "text": "b", "speaker": "Zoe", "audio_codes": CODES}) + "\n")
    mix = (MixedFile(path=config.data.train), MixedFile(path=other))
    mixed = config.model_copy(update={"data": config.data.model_copy(update={"train": None, "mix": mix})})
    abe, zoe = collect_from(mixed)
    assert [abe.name, zoe.name] == ["abe", "zoe"]
    assert zoe.select_references(1) == [other.parent / "high.flac"]
    assert abe.select_references(1) == [config.data.train.parent / "low.flac"]
    state = make_recipe_state(mixed, [abe, zoe], {"abe": 3000, "zoe": 3001})
    assert state.data.clips == 2 and state.data.name.startswith("other/train.jsonl, ") and len(state.data.sha256) == 64


def test_the_longest_clips_are_the_references() -> None:
    """A short clip says little about a voice. Clips of equal length are sorted by name, so that the choice is reproducible."""
    clips = [(2.0, "b"), (9.0, "c"), (1.0, "a"), (5.0, "e"), (5.0, "d")]
    speaker = DatasetSpeaker("zoe", own_clips=[(seconds, Path(name)) for seconds, name in clips])
    assert [str(path) for path in speaker.select_references(8)] == ["c", "d", "e", "b", "a"]
    assert [str(path) for path in speaker.select_references(2)] == ["c", "d"]


@pytest.mark.parametrize(
    ("languages", "found"),
    [(["en", "de", "de"], "german"), (["de", "en", "de"], "german"), (["en", None, None], None), (["en"], "english")],
)
def test_the_language_of_a_speaker_is_the_most_frequent_one(
    tmp_path: Path, corpus: Any, languages: list[str | None], found: str | None
) -> None:
    rows = [{"audio": "low.flac", "text": "a", "speaker": "zoe", "language": language, "audio_codes": CODES} for language in languages]
    assert collect(tmp_path, corpus, rows)[0].language == found


def test_named_references_are_preferred_to_own_clips(tmp_path: Path, corpus: Any) -> None:
    rows = [
        {"audio": "high.flac", "text": "a", "speaker": "zoe", "audio_codes": CODES * 9},
        {"audio": "high.flac", "ref_audio": "low.flac", "text": "b", "speaker": "zoe", "audio_codes": CODES},
    ]
    (zoe,) = collect(tmp_path, corpus, rows)
    assert [path.name for path in zoe.select_references(8)] == ["low.flac"]


def test_rows_without_speaker_get_the_option(tmp_path: Path, corpus: Any) -> None:
    rows = [{"audio": "low.flac", "text": "a", "audio_codes": CODES}]
    assert collect(tmp_path, corpus, rows, ("options.speaker", "Me"))[0].name == "me"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"audio": "low.flac", "text": "a", "audio_codes": CODES}, 'the row has no speaker; add "speaker" to it'),
        ({"audio": "low.flac", "text": "a", "speaker": "me"}, "overtone codes"),
        ({"text": "a", "speaker": "me", "audio_codes": CODES}, "neither audio nor ref_audio"),
        ({"audio": "../low.flac", "text": "a", "speaker": "me", "audio_codes": CODES}, "leads outside of"),
        ({"audio": "low.flac", "text": "a", "speaker": "me", "language": "latin", "audio_codes": CODES}, "language 'latin' is not known"),
    ],
)
def test_a_bad_row_is_reported_with_its_line(row: dict[str, Any], message: str, tmp_path: Path, corpus: Any) -> None:
    good = {"audio": "low.flac", "text": "a", "speaker": "me", "audio_codes": CODES}
    with pytest.raises(UserError) as caught:
        collect(tmp_path, corpus, [good, row, good])
    assert f"{tmp_path / 'train.jsonl'}:2: " in str(caught.value) and message in str(caught.value)


def test_all_bad_rows_are_counted(tmp_path: Path, corpus: Any) -> None:
    with pytest.raises(UserError, match="all 12 rows: the row has no speaker"):
        collect(tmp_path, corpus, [{"text": "a"}] * 12)


def test_chats_are_one_message_that_names_the_recipe(tmp_path: Path, corpus: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]}
    with pytest.raises(UserError) as caught:
        collect(tmp_path, corpus, [chat] * 3)
    assert str(caught.value).startswith(f"{tmp_path / 'train.jsonl'}: all 3 rows: the row is a chat (it has messages), and voice_clone")
    assert "use --recipe llm_sft" in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_in_capitals_is_reported(tmp_path: Path, corpus: Any) -> None:
    row = {"audio": "low.flac", "text": "a", "audio_codes": CODES}
    speakers = collect(tmp_path, corpus, [{**row, "speaker": "Anna"}, {**row, "speaker": "anna"}, {**row, "speaker": "bert"}])
    assert describe_renamed(speakers) == ["speaker 'Anna' is called 'anna' in the model, whose names are in lower case"]


def test_a_speaker_only_in_the_validation_data_is_refused(tmp_path: Path, corpus: Any) -> None:
    row = {"audio": "low.flac", "text": "a", "speaker": "me", "audio_codes": CODES}
    (tmp_path / "val.jsonl").write_text(json.dumps({**row, "speaker": "You"}) + "\n")
    with pytest.raises(UserError, match=r"val\.jsonl:1: speaker 'you' is not trained: the training data has only me"):
        collect(tmp_path, corpus, [row], ("data.val", str(tmp_path / "val.jsonl")))


def test_missing_and_empty_data_are_refused(tmp_path: Path, corpus: Any) -> None:
    made = corpus(tmp_path, [])
    with pytest.raises(UserError, match="has no rows"):
        collect_from(made.config(tmp_path))
    with pytest.raises(UserError, match="nowhere.jsonl: No such file"):
        collect_from(made.config(tmp_path, ("data.train", "nowhere.jsonl")))
    with pytest.raises(UserError, match=r"data.train is not set.*make demo"):
        collect_from(made.config(tmp_path, ("data.train", "null")))


def test_new_speakers_get_the_free_rows_from_3000() -> None:
    shape = config_factory.make_released_config("0.6B")
    assert assign_embedding_rows(shape, ["abe", "zoe"]) == {"abe": 3000, "zoe": 3001}
    shape["talker_config"]["spk_id"] = {"Vivian": 3000, "ryan": 3002, "old": 2900}
    assert assign_embedding_rows(shape, ["abe", "ryan", "zoe"]) == {"abe": 3001, "ryan": 3002, "zoe": 3003}


def test_too_many_speakers_are_refused() -> None:
    shape = config_factory.make_released_config("0.6B")
    names = [f"s{index:02}" for index in range(73)]
    assert len(assign_embedding_rows(shape, names[:72])) == 72
    with pytest.raises(UserError, match=r"no free row for 1 of 73 speakers \(the first is 's72'\): rows 3000 … 3071"):
        assign_embedding_rows(shape, names)


def test_the_recipe_state_is_json_and_identifies_the_data(tmp_path: Path, corpus: Any) -> None:
    folder = tmp_path / "mine"
    rows = [{"audio": "low.flac", "text": "a", "speaker": "me", "language": "english", "audio_codes": CODES}]
    for overrides, language in (((), "english"), ((("options.language", "none"),), None)):
        config = corpus(folder, rows).config(folder, *overrides)
        state = make_recipe_state(config, collect_from(config), {"me": 3000})
        assert json.loads(json.dumps(state.as_json())) == state.as_json()
        assert state.as_json()["speakers"] == [{"name": "me", "row": 3000, "language": language, "clips": 1, "seconds": 2.0}]
        assert state.data.name == "mine/train.jsonl" and len(state.data.sha256) == 64
