"""Which files hold rows, and what each line contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.dataset.manifest_line_reader import find_manifests, read_manifest_lines
from overtone.finetune.errors import UserError


def test_manifests_are_given_by_folder_or_by_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    assert find_manifests(tmp_path) == [tmp_path / "train.jsonl"]
    (tmp_path / "val.jsonl").touch()
    assert find_manifests(tmp_path) == [tmp_path / "train.jsonl", tmp_path / "val.jsonl"]
    assert find_manifests(tmp_path / "val.jsonl") == [tmp_path / "val.jsonl"]


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ([], "data", "data does not exist; create it with"),
        (["data/notes.txt"], "data", "no train.jsonl in it; give a dataset folder"),
        (["data/metadata.csv"], "data", "its metadata.csv is read by: overtone voice .*data --transcripts"),
        (["data/train_raw.jsonl", "data/rejects.jsonl"], "data", "it holds train_raw.jsonl: give one of these"),
    ],
)
def test_a_path_that_is_no_dataset_is_refused(names: list[str], given: str, message: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        find_manifests(tmp_path / given)


def test_a_run_is_refused_with_the_verb_that_reads_it(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "log.jsonl").touch()
    with pytest.raises(UserError, match=f"my run: a run, not a dataset; runs are read by: overtone check '{run}'$"):
        find_manifests(run, "check")
    with pytest.raises(UserError, match="it holds log.jsonl"):
        find_manifests(run)
    (run / "train.jsonl").touch()
    assert find_manifests(run, "check") == [run / "train.jsonl"]


def test_each_line_is_a_row_or_has_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"audio": "a.wav", "text": "A."}\n\n[1]\n{"audio"\n\xff\n{"audio": "a.wav"}\n{"audio": "a.wav", "text": " "}\n')
    lines = list(read_manifest_lines(path))
    assert [line.place for line in lines] == [f"train.jsonl:{number}" for number in (1, 3, 4, 5, 6, 7)]
    assert [line.kind for line in lines] == ["", "not_json", "not_json", "not_json", "bad_row", "bad_row"]
    assert [lines[4].detail, lines[5].detail] == ["text: Field required", "text: only spaces"]
    row = lines[0].row
    assert row is not None and (row.audio, row.text) == ("a.wav", "A.")


@pytest.mark.parametrize("row", ['{"messages": []}', '{"prompt": "a", "completion": "b"}'])
def test_rows_of_text_belong_to_another_verb(row: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(row)
    with pytest.raises(UserError, match=r"chats.jsonl:1: a chat row, not a speech row; .* overtone text"):
        list(read_manifest_lines(path))
