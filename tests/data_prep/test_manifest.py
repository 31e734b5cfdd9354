"""Rows are written and read back; errors name the file and the line."""

from __future__ import annotations

import json
import shlex

import pytest

from overtone.data_prep import manifest
from overtone.data_prep.manifest import ManifestRow, parse_language, parse_speaker, read_rows
from overtone.finetune.errors import UserError

ROW = {"audio": "clips/a.flac", "text": "Hello.", "speaker": "me"}


def written(tmp_path, *lines):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines) + b"\n")
    return path


def test_written_rows_are_read_back_in_order_with_unknown_keys(tmp_path) -> None:
    rows = [
        ManifestRow(id=str(index), audio=f"clips/{index}.flac", text="Grüß «Gott» 你好", speaker="me", duration=1.5) for index in range(3)
    ]
    rows.append(ManifestRow.model_validate(ROW | {"mood": {"calm": 1}, "audio_codes": [[1, 2]]}))
    path = tmp_path / "train.jsonl"
    assert manifest.write_entries(path, rows) == 4
    assert list(read_rows(path)) == rows
    first = path.read_bytes()
    manifest.write_entries(path, list(read_rows(path)))
    assert path.read_bytes() == first
    assert "你好" in first.decode()
    assert "null" not in first.decode()


def test_the_training_command_can_be_pasted_and_names_validation_data_if_there_is_some(tmp_path) -> None:
    folder = tmp_path / "my $voice"
    folder.mkdir()
    (folder / "train.jsonl").write_text("{}")
    (folder / "val.jsonl").write_text("")
    start = ["overtone", "train", "--recipe", "voice_clone", "--data.train"]
    assert shlex.split(manifest.training_command(folder, "voice_clone")) == [*start, str(folder / "train.jsonl")]
    assert shlex.split(manifest.training_command(folder / "train.jsonl", "voice_clone"))[-1] == str(folder / "train.jsonl")
    (folder / "val.jsonl").write_text("{}")
    assert shlex.split(manifest.training_command(folder, "voice_clone")) == [
        *start,
        str(folder / "train.jsonl"),
        "--data.val",
        str(folder / "val.jsonl"),
    ]
    (folder / "train.shifted.jsonl").write_text("{}")
    assert shlex.split(manifest.training_command(folder, "voice_clone"))[-3] == str(folder / "train.shifted.jsonl")


def test_unchanged_rows_keep_their_codes_and_changed_rows_lose_them(tmp_path) -> None:
    quality = {"chars_per_second": 1, "speech_share": 1, "peak_dbfs": 0, "clipped_share": 0, "edge_energy_db": (-1.5, -2.0)}
    plain = ManifestRow.model_validate(ROW | {"quality": quality})
    path = tmp_path / "train.jsonl"
    manifest.write_entries(path, [plain.model_copy(update={"audio_codes": [[1, 2]]})])
    with_codes = path.read_bytes()
    copies = manifest.locate_shifted_rows(path)
    copies.write_bytes(with_codes)
    manifest.write_rows_unless_same(path, [plain])
    assert path.read_bytes() == copies.read_bytes() == with_codes
    manifest.write_rows_unless_same(path, [plain, plain])
    assert b"audio_codes" not in path.read_bytes() and not copies.exists()
    assert len(list(read_rows(path))) == 2


def test_manifests_of_the_official_script_need_only_a_speaker(tmp_path) -> None:
    official = {"audio": "wavs/1.wav", "text": "Hello.", "ref_audio": "wavs/ref.wav"}
    path = written(tmp_path, official)
    (row,) = read_rows(path, speaker="me")
    assert (row.speaker, row.ref_audio, row.language) == ("me", "wavs/ref.wav", "auto")
    with pytest.raises(UserError, match=r"train.jsonl:1: .*--speaker NAME"):
        list(read_rows(path))
    (row,) = read_rows(written(tmp_path, ROW), speaker="other")
    assert row.speaker == "me"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"audio": "a.wav", ', "not a JSON object"),
        (b"\xff\xfe{}", "not a JSON object"),
        (b"[1]", "found list"),
        ({"text": "no audio", "speaker": "me"}, "audio: Field required"),
        ({"audio": "a.wav", "text": "", "speaker": "me"}, "text: String should have at least 1"),
        ({"audio": 3, "text": "a", "speaker": "me"}, "audio: Input should be a valid string"),
        (ROW | {"audio": "../outside.wav"}, "leads outside"),
        (ROW | {"audio": "/etc/passwd"}, "leads outside"),
        (ROW | {"audio_codes": [[1, "x"]]}, "audio_codes.0.1"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(line, message, tmp_path) -> None:
    path = written(tmp_path, ROW, b"", line)
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.wav").write_bytes(b"")
    (tmp_path / "data" / "a.wav").symlink_to(tmp_path / "secret.wav")
    path = written(tmp_path / "data", {"audio": "a.wav", "text": "a", "speaker": "me"})
    with pytest.raises(UserError, match=r":1: audio: 'a\.wav' leads outside"):
        list(read_rows(path))


def test_an_absolute_path_inside_the_folder_is_accepted(tmp_path) -> None:
    (row,) = read_rows(written(tmp_path, ROW | {"audio": str(tmp_path / "clips" / "a.flac")}))
    assert manifest.resolve_clip(tmp_path / "train.jsonl", row) == tmp_path.resolve() / "clips" / "a.flac"


def test_a_missing_manifest_says_how_to_make_one(tmp_path) -> None:
    with pytest.raises(UserError, match="overtone voice RECORDINGS --out"):
        list(read_rows(tmp_path / "train.jsonl"))


def test_language_codes_and_names_become_one_name() -> None:
    assert [parse_language(given) for given in ("en", "EN", "English", " german ", "zh", "auto", "Dutch")] == [
        "english",
        "english",
        "english",
        "german",
        "chinese",
        "auto",
        "dutch",
    ]
    assert len(manifest.LANGUAGES) == 10
    for given in ("xx", "", "e n", "en-US"):
        with pytest.raises(UserError, match=r"--language .*en \(english\)"):
            parse_language(given)


def test_speaker_names_become_lower_case() -> None:
    assert parse_speaker("  Anna  MARIA ") == "anna maria"
    with pytest.raises(UserError, match="expected a non-empty name"):
        parse_speaker("  ")


def test_locales_of_tables_are_languages() -> None:
    assert [manifest.parse_locale(text) for text in ("pt-BR", "ZH", "English", "zh_CN", "dutch", "sv-SE", "JP", "xx", "")] == [
        "portuguese",
        "chinese",
        "english",
        "chinese",
        "dutch",
        "swedish",
        "japanese",
        "auto",
        "auto",
    ]
