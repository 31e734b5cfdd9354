"""Datasets with sound become folders of recordings, with their texts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import soundfile
from pyarrow import parquet

from overtone.data_prep.recordings import audio_datasets
from overtone.data_prep.recordings.audio_datasets import is_audio_dataset, unpack_dataset
from overtone.data_prep.recordings.recording_files import find_recordings
from overtone.data_prep.recordings.user_transcripts import find_transcripts
from overtone.finetune.errors import UserError
from tests.finetune import fake_hub


def sound(number: int) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.full(100, number / 10), 24_000, format="FLAC")
    return buffer.getvalue()


def table(count: int, **columns: list[Any]) -> pyarrow.Table:
    audio = [{"bytes": sound(number), "path": f"{number}.flac"} for number in range(count)]
    return pyarrow.table({"audio": audio, "text": [f"Text {number}." for number in range(count)], "id": [*range(count)], **columns})


def held(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def test_parquet_with_embedded_sound(tmp_path: Path) -> None:
    parquet.write_table(table(3, speaker_id=["a", "b", None], locale=["de"] * 3), tmp_path / "train-00000-of-00001.parquet")
    assert is_audio_dataset(tmp_path) and not is_audio_dataset(Path(__file__).parent)
    folder = unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], [])
    assert held(folder)[0] == {"file_name": "train-000001.flac", "text": "Text 0.", "speaker": "a", "language": "de"}
    sources = find_recordings(folder, "me", tmp_path / "out" / "me")
    assert [source.path.read_bytes() for source in sources] == [sound(number) for number in range(3)]
    found = find_transcripts([source.path for source in sources], folder).by_recording
    assert [(text.text, text.speaker, text.language) for text in found.values() if text] == [
        ("Text 0.", "a", "de"),
        ("Text 1.", "b", "de"),
        ("Text 2.", None, "de"),
    ]
    before = folder.stat().st_mtime_ns
    assert unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], []).stat().st_mtime_ns == before, "it is not written again"
    parquet.write_table(table(2), tmp_path / "train-00000-of-00001.parquet")
    assert len(held(unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], []))) == 2


def test_a_folder_saved_by_datasets_and_its_splits(tmp_path: Path) -> None:
    for split, count in (("train", 2), ("test", 1)):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        rows = table(count).rename_columns(["audio", "sentence", "id"])
        with pyarrow.OSFile(str(folder / "data.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
        (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UserError, match="has several splits: train, test; choose with --split NAME"):
        unpack_dataset(str(tmp_path / "saved"), tmp_path / "me", [], [])
    assert len(held(unpack_dataset(str(tmp_path / "saved"), tmp_path / "me", [], ["train", "test"]))) == 3
    assert [row["text"] for row in held(unpack_dataset(str(tmp_path / "saved" / "test"), tmp_path / "me", [], []))] == ["Text 0."]


def test_rows_without_sound_are_reported_and_no_path_leads_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret.flac").write_bytes(sound(1))
    (data := tmp_path / "data").mkdir()
    (data / "beside.flac").write_bytes(sound(2))
    audio = [{"bytes": None, "path": name} for name in ("../secret.flac", "beside.flac", "gone.flac")]
    parquet.write_table(pyarrow.table({"audio": audio}), data / "train.parquet")
    folder = unpack_dataset(str(data), tmp_path / "me", [], [])
    assert held(folder) == [{"file_name": "train-000002.flac", "text": ""}] and (folder / "train-000002.flac").read_bytes() == sound(2)
    assert "2 rows without sound, dropped" in capsys.readouterr().out
    parquet.write_table(pyarrow.table({"audio": audio[:1]}), data / "train.parquet")
    with pytest.raises(UserError, match="none of its 1 row has sound"):
        unpack_dataset(str(data), tmp_path / "me", [], [])
    parquet.write_table(pyarrow.table({"text": ["x"]}), data / "train.parquet")
    with pytest.raises(UserError, match=r"train.parquet has no column with sound \(\{bytes, path\}\); its columns are text"):
        unpack_dataset(str(data), tmp_path / "me", [], [])
    (data / "train.parquet").write_bytes(b"PAR1broken")
    with pytest.raises(UserError, match="train.parquet is broken"):
        unpack_dataset(str(data), tmp_path / "me", [], [])


def test_a_dataset_on_the_hub_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    parquet.write_table(table(2), buffer)
    with fake_hub.opened() as hub:
        fake_hub.point_client_at(hub, tmp_path / "hf", monkeypatch)
        card = b"---\nconfigs:\n- config_name: en\n  data_dir: en\n- config_name: de\n  data_dir: de\n---\n"
        hub.repositories["datasets/me/voices"] = {"README.md": card, "evil.py": b"1"} | {
            f"{config}/train.parquet": buffer.getvalue() for config in ("en", "de")
        }
        hub.repositories["datasets/me/folder"] = {"a.flac": sound(1), "metadata.csv": b"file_name,text\na.flac,One.\n", "load.py": b"1"}
        assert is_audio_dataset("me/voices") and not is_audio_dataset("s3://me/voices")
        with pytest.raises(UserError, match="recordings me/voices has several configurations: en, de; choose with --config NAME"):
            unpack_dataset("me/voices", tmp_path / "one", [], [])
        assert len(held(unpack_dataset("me/voices", tmp_path / "one", ["de"], []))) == 2
        folder = unpack_dataset("me/folder", tmp_path / "two", [], [])
    assert sorted(path.name for path in folder.iterdir()) == ["a.flac", "dataset.json", "metadata.csv"]
    assert not (folder / "a.flac").is_symlink() and (folder / "a.flac").read_bytes() == sound(1)
    assert not list((tmp_path / "hf").rglob("*.py"))


def test_no_folder_of_the_user_is_replaced(tmp_path: Path) -> None:
    (own := tmp_path / "o.recordings" / "mine").mkdir(parents=True)
    parquet.write_table(table(1), own / "train.parquet")
    with pytest.raises(UserError, match="is where its recordings would be written"):
        unpack_dataset(str(own / "train.parquet").replace("train.parquet", ""), tmp_path / "o", [], [])
    (other := tmp_path / "mine").mkdir()
    parquet.write_table(table(1), other / "train.parquet")
    with pytest.raises(UserError, match="mine exists and was not written from a dataset; choose another --out"):
        unpack_dataset(str(other), tmp_path / "o", [], [])
    assert [path.name for path in own.iterdir()] == ["train.parquet"]


def test_speakers_as_numbers_classes_and_dictionaries(tmp_path: Path) -> None:
    def read(**columns: Any) -> list[tuple[str, str | None, str | None]]:
        found = table(2, **columns)
        described = {"info": {"features": {"speaker": {"names": ["ann", "bo"], "_type": "ClassLabel"}}}}
        parquet.write_table(found.replace_schema_metadata({"huggingface": json.dumps(described)}), tmp_path / "train.parquet")
        rows = held(unpack_dataset(str(tmp_path / "train.parquet"), tmp_path / "me", [], []))
        return [(row["text"], row.get("speaker"), row.get("language")) for row in rows]

    assert read(speaker_id=[7, 0]) == [("Text 0.", "7", None), ("Text 1.", "0", None)]
    assert read(speaker=[1, -1], locale=["de", "fr"]) == [("Text 0.", "bo", "de"), ("Text 1.", None, "fr")]
    assert read(client_id=pyarrow.array(["x", "y"]).dictionary_encode())[1] == ("Text 1.", "y", None)
    parquet.write_table(table(1).rename_columns(["audio", "text", "text"]), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="has several columns named 'text'; rename one of them"):
        unpack_dataset(str(tmp_path / "train.parquet"), tmp_path / "me", [], [])


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ('"train"', "splits must be a list of names of folders beside it, found 'train'"),
        ('["a/b"]', "splits must be a list of names"),
        ('["train"]', "the folder of the split train or its state.json is missing"),
    ],
)
def test_broken_lists_of_splits(tmp_path: Path, splits: str, message: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_dict.json").write_text(f'{{"splits": {splits}}}')
    with pytest.raises(UserError, match=message):
        unpack_dataset(str(tmp_path / "data"), tmp_path / "me", [], [])


def test_a_parquet_file_beside_folders_of_recordings_is_no_dataset(tmp_path: Path) -> None:
    parquet.write_table(table(1), tmp_path / "meta.parquet")
    assert is_audio_dataset(tmp_path)
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "a.wav").write_bytes(sound(1))
    assert not is_audio_dataset(tmp_path) and is_audio_dataset(tmp_path / "meta.parquet")


def test_numbered_files_are_of_the_split_of_their_folder(tmp_path: Path) -> None:
    for name in ("0000.parquet", "0001.parquet"):
        parquet.write_table(table(2), tmp_path / name)
    assert [row["file_name"] for row in held(unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], []))] == [
        f"train-{number:06d}.flac" for number in range(1, 5)
    ]
    (tmp_path / "other" / "test").mkdir(parents=True)
    (tmp_path / "other" / "default").mkdir()
    parquet.write_table(table(1), tmp_path / "other" / "test" / "0000.parquet")
    parquet.write_table(table(3), tmp_path / "other" / "default" / "0000.parquet")
    with pytest.raises(UserError, match="has several splits: train, test"):
        unpack_dataset(str(tmp_path / "other"), tmp_path / "out" / "you", [], [])
    assert len(held(unpack_dataset(str(tmp_path / "other"), tmp_path / "out" / "you", [], ["test"]))) == 1


def test_configurations_are_folders_of_a_local_dataset(tmp_path: Path) -> None:
    for config, count in (("de", 1), ("fr", 2)):
        (tmp_path / "data" / config).mkdir(parents=True)
        parquet.write_table(table(count), tmp_path / "data" / config / "train-00000-of-00001.parquet")
        parquet.write_table(table(5), tmp_path / "data" / config / "test-00000-of-00001.parquet")
    place = str(tmp_path / "data")
    assert is_audio_dataset(place)
    with pytest.raises(UserError, match="has several configurations: de, fr; choose with --config NAME"):
        unpack_dataset(place, tmp_path / "me", [], ["train"])
    assert len(held(unpack_dataset(place, tmp_path / "me", ["fr"], ["train"]))) == 2
    with pytest.raises(UserError, match="--config it: .* has no such configuration; it has de, fr"):
        unpack_dataset(place, tmp_path / "me", ["it"], ["train"])
    single = tmp_path / "data" / "de" / "train-00000-of-00001.parquet"
    with pytest.raises(UserError, match="has no configurations; omit --config"):
        unpack_dataset(str(single), tmp_path / "me", ["de"], [])


def test_another_version_of_the_code_writes_the_recordings_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(table(1), tmp_path / "train.parquet")
    (written := unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], []) / "metadata.jsonl").write_text("")
    unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], [])
    assert not written.read_text()
    monkeypatch.setattr(audio_datasets, "FORM", -1)
    unpack_dataset(str(tmp_path), tmp_path / "out" / "me", [], [])
    assert written.read_text()
