"""Who is in the data: counting, references, rows of the table, and bad data named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import UserError
from recipes.voice_clone.model import model_configs
from recipes.voice_clone.model.sequence_layout import Ids
from recipes.voice_clone.model.speaker_statistics import Speaker, assign_rows, base_name, describe, survey

IDS = Ids.of(model_configs.released("0.6B"))
CODES = [[1] * 16] * 25


def surveyed(folder: Path, corpus: Any, rows: list[dict[str, Any]], *overrides: tuple[str, str]) -> list[Speaker]:
    return survey(corpus(folder, rows).config(folder, *overrides), IDS)


def test_counts_per_speaker(tmp_path: Path, corpus: Any) -> None:
    rows = [
        {"audio": "low.flac", "text": "a", "speaker": "Zoe", "language": "en", "audio_codes": CODES},
        {"audio": "high.flac", "text": "b", "speaker": "zoe ", "language": "German", "audio_codes": CODES * 2},
        {"audio": "high.flac", "text": "c", "speaker": "ZOE", "language": "english", "audio_codes": CODES},
        {"audio": "low.flac", "text": "d", "speaker": "Abe", "audio_codes": CODES},
    ]
    abe, zoe = surveyed(tmp_path, corpus, rows)
    assert (abe.name, abe.clips, abe.frames, abe.language) == ("abe", 1, 25, None)
    assert (zoe.name, zoe.clips, zoe.frames, zoe.language) == ("zoe", 3, 100, "english")
    assert [path.name for path in zoe.references(8)] == ["high.flac", "low.flac"]  # its longest clip first, each once
    assert [path.name for path in zoe.references(1)] == ["high.flac"]


def test_the_longest_clips_are_the_references_whatever_their_names_and_places() -> None:
    """A short clip says little about a voice. Of equally long ones the first by name, so that the choice stays."""
    clips = [(2.0, "b"), (9.0, "c"), (1.0, "a"), (5.0, "e"), (5.0, "d")]
    speaker = Speaker("zoe", own=[(seconds, Path(name)) for seconds, name in clips])
    assert [str(path) for path in speaker.references(8)] == ["c", "d", "e", "b", "a"]
    assert [str(path) for path in speaker.references(2)] == ["c", "d"]


@pytest.mark.parametrize(
    ("languages", "found"),
    [(["en", "de", "de"], "german"), (["de", "en", "de"], "german"), (["en", None, None], None), (["en"], "english")],
)
def test_the_language_of_a_speaker_is_that_of_most_clips(
    tmp_path: Path, corpus: Any, languages: list[str | None], found: str | None
) -> None:
    rows = [{"audio": "low.flac", "text": "a", "speaker": "zoe", "language": language, "audio_codes": CODES} for language in languages]
    assert surveyed(tmp_path, corpus, rows)[0].language == found


def test_named_references_go_before_own_clips(tmp_path: Path, corpus: Any) -> None:
    rows = [
        {"audio": "high.flac", "text": "a", "speaker": "zoe", "audio_codes": CODES * 9},
        {"audio": "high.flac", "ref_audio": "low.flac", "text": "b", "speaker": "zoe", "audio_codes": CODES},
    ]
    (zoe,) = surveyed(tmp_path, corpus, rows)
    assert [path.name for path in zoe.references(8)] == ["low.flac"]


def test_rows_without_speaker_get_the_option(tmp_path: Path, corpus: Any) -> None:
    rows = [{"audio": "low.flac", "text": "a", "audio_codes": CODES}]
    assert surveyed(tmp_path, corpus, rows, ("options.speaker", "Me"))[0].name == "me"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"audio": "low.flac", "text": "a", "audio_codes": CODES}, 'the row names no speaker; add "speaker" to it'),
        ({"audio": "low.flac", "text": "a", "speaker": "me"}, "python -m data_prep codes"),
        ({"text": "a", "speaker": "me", "audio_codes": CODES}, "neither audio nor ref_audio"),
        ({"audio": "../low.flac", "text": "a", "speaker": "me", "audio_codes": CODES}, "leads outside of"),
        ({"audio": "low.flac", "text": "a", "speaker": "me", "language": "latin", "audio_codes": CODES}, "language 'latin' is not known"),
    ],
)
def test_bad_rows_are_named(row: dict[str, Any], message: str, tmp_path: Path, corpus: Any) -> None:
    good = {"audio": "low.flac", "text": "a", "speaker": "me", "audio_codes": CODES}
    with pytest.raises(UserError) as caught:
        surveyed(tmp_path, corpus, [good, row, good])
    assert f"{tmp_path / 'train.jsonl'}:2: " in str(caught.value) and message in str(caught.value)


def test_all_bad_rows_are_counted(tmp_path: Path, corpus: Any) -> None:
    with pytest.raises(UserError, match="12 bad rows") as caught:
        surveyed(tmp_path, corpus, [{"text": "a"}] * 12)
    assert str(caught.value).endswith("… and 2 more")


def test_unknown_speaker_in_validation(tmp_path: Path, corpus: Any) -> None:
    row = {"audio": "low.flac", "text": "a", "speaker": "me", "audio_codes": CODES}
    (tmp_path / "val.jsonl").write_text(json.dumps({**row, "speaker": "You"}) + "\n")
    with pytest.raises(UserError, match=r"val\.jsonl:1: speaker 'you' has no voice to evaluate: the training data has only me"):
        surveyed(tmp_path, corpus, [row], ("data.val", str(tmp_path / "val.jsonl")))


def test_missing_and_empty_data(tmp_path: Path, corpus: Any) -> None:
    made = corpus(tmp_path, [])
    with pytest.raises(UserError, match="has no rows"):
        survey(made.config(tmp_path), IDS)
    with pytest.raises(UserError, match="nowhere.jsonl: No such file"):
        survey(made.config(tmp_path, ("data.train", "nowhere.jsonl")), IDS)
    with pytest.raises(UserError, match=r"data.train is not set.*make demo"):
        survey(made.config(tmp_path, ("data.train", "null")), IDS)


def test_free_rows_from_3000_upwards() -> None:
    shape = model_configs.released("0.6B")
    assert assign_rows(shape, ["abe", "zoe"]) == {"abe": 3000, "zoe": 3001}
    shape["talker_config"]["spk_id"] = {"Vivian": 3000, "ryan": 3002, "old": 2900}
    assert assign_rows(shape, ["abe", "ryan", "zoe"]) == {"abe": 3001, "ryan": 3002, "zoe": 3003}


def test_full_table_is_refused() -> None:
    shape = model_configs.released("0.6B")
    names = [f"s{index:02}" for index in range(73)]
    assert len(assign_rows(shape, names[:72])) == 72
    with pytest.raises(UserError, match=r"no room for 1 of 73 speakers \(the first is 's72'\): rows 3000 … 3071"):
        assign_rows(shape, names)


def test_description_is_json_and_names_the_data(tmp_path: Path, corpus: Any) -> None:
    folder = tmp_path / "mine"
    rows = [{"audio": "low.flac", "text": "a", "speaker": "me", "language": "english", "audio_codes": CODES}]
    for overrides, language in (((), "english"), ((("options.language", "none"),), None)):
        config = corpus(folder, rows).config(folder, *overrides)
        state = describe(config, survey(config, IDS), {"me": 3000})
        assert json.loads(json.dumps(state)) == state
        assert state["speakers"] == [{"name": "me", "row": 3000, "language": language, "clips": 1, "seconds": 2.0}]
        assert state["data"]["name"] == "mine/train.jsonl" and len(state["data"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("source", "shown"), [("Qwen/Base", "Qwen/Base"), ("./nano", "nano"), ("runs/tiny/nano", "nano"), ("/home/me/private/base/", "base")]
)
def test_base_is_named_without_local_folders(source: str, shown: str) -> None:
    assert base_name(source) == shown


def test_folder_that_looks_like_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert base_name("Qwen/Base") == "Base"
