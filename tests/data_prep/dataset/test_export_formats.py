"""Each export format, read back as its readers read it."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.cli.check import check_dataset
from overtone.data_prep.dataset.export_formats import ExportItem, write_audiofolder, write_ljspeech, write_qwen, write_voice
from overtone.data_prep.manifest import ManifestRow
from overtone.data_prep.recordings.user_transcripts import find_transcripts
from overtone.finetune.errors import UserError

SHORT, LONG = 24_000, 150_000


@pytest.fixture
def item(tmp_path: Path, write_sound: Callable[..., Path]) -> Callable[..., ExportItem]:
    """(name, fields of the row) → an item with a clip of its own."""

    def make(name: str, file: str = "", length: int = SHORT, rate: int = MASTER_RATE, validates: bool = False, **fields: Any) -> ExportItem:
        samples = np.random.default_rng(list(name.encode())).uniform(-0.3, 0.3, length)
        clip = write_sound(tmp_path / "clips" / (file or f"{name}.flac"), samples, rate)
        row = ManifestRow.model_validate({"audio": clip.name, "text": f"This is what {name} said.", "speaker": "me", "id": name, **fields})
        return ExportItem(name, f"train.jsonl:{name}", row, None, clip, None, validates, length / rate)

    return make


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_ljspeech_exports_are_read_by_column_and_by_data_prep(item, tmp_path) -> None:
    folder = tmp_path / "out"
    exported = write_ljspeech(
        [item("a"), item("b", text='Zwei\n"Zeilen" für dich.'), item("c", text="x|y"), item("d", validates=True)], folder
    )
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    assert rows == [["a"] + ["This is what a said."] * 2, ["b"] + ['Zwei "Zeilen" für dich.'] * 2]
    assert (folder / "metadata_val.csv").read_text() == "d|This is what d said.|This is what d said.\n"
    assert exported.skipped == ["train.jsonl:c: the text contains |, the field separator of metadata.csv"]
    assert {path.stem for path in folder.glob("wavs/*.wav")} == {"a", "b", "d"}
    found = find_transcripts([folder / "wavs" / "a.wav", folder / "wavs" / "b.wav"])
    assert [text.text for text in found.by_recording.values()] == ["This is what a said.", 'Zwei "Zeilen" für dich.']


def test_ljspeech_exports_of_several_speakers_name_them(item, tmp_path) -> None:
    folder = tmp_path / "out"
    names = {"a": "anna", "b": "bob", "c": "anna", "d": "bob"}
    write_ljspeech([item(name, speaker=speaker) for name, speaker in names.items()], folder)
    assert (folder / "metadata.csv").read_text().splitlines()[1] == "b|bob|This is what b said."
    found = find_transcripts(sorted(folder.glob("wavs/*.wav")))
    assert [text.speaker for text in found.by_recording.values()] == ["anna", "bob", "anna", "bob"]
    with pytest.raises(UserError, match=r"train.jsonl:b: speaker 'b\|ob' cannot be written"):
        write_ljspeech([item("a"), item("b", speaker="b|ob")], folder)


@pytest.mark.parametrize(
    ("file", "rate"), [("a.flac", MASTER_RATE), ("a.wav", MASTER_RATE), ("a.wav", 44_100), ("a.ogg", 16_000), ("a.m4a", 48_000)]
)
def test_exported_wavs_are_24_khz_mono_16_bit_and_lossless_where_possible(file, rate, item, tmp_path) -> None:
    one = item("a", file=file, rate=rate, length=rate)
    write_ljspeech([one], tmp_path / "out")
    wav = tmp_path / "out" / "wavs" / "a.wav"
    info = soundfile.info(wav)
    assert (info.samplerate, info.channels, info.subtype, info.format) == (MASTER_RATE, 1, "PCM_16", "WAV")
    assert info.duration == pytest.approx(1.0, abs=0.05)
    if rate == MASTER_RATE:
        assert np.array_equal(soundfile.read(wav, dtype="int16")[0], soundfile.read(one.clip, dtype="int16")[0])
    assert (wav.stat().st_ino == one.clip.stat().st_ino) is (file == "a.wav" and rate == MASTER_RATE)


def test_audiofolder_exports_have_the_documented_columns_in_every_split(item, tmp_path) -> None:
    folder = tmp_path / "out"
    one, two = item("a", duration=1.0, source="s.wav"), item("b", file="b.m4a", validates=True, duration=1.0)
    write_audiofolder([one, two], folder)
    (train,), (validation,) = (lines(folder / split / "metadata.jsonl") for split in ("train", "validation"))
    assert train == {
        "file_name": "a.flac",
        "id": "a",
        "text": "This is what a said.",
        "speaker": "me",
        "language": "auto",
        "duration": 1.0,
    }
    assert (list(validation), validation["file_name"]) == (list(train), "b.wav")
    assert (folder / "train" / "a.flac").stat().st_ino == one.clip.stat().st_ino
    assert soundfile.info(folder / "validation" / "b.wav").samplerate == MASTER_RATE
    assert sorted(path.name for path in folder.rglob("*.*")) == ["a.flac", "b.wav", "metadata.jsonl", "metadata.jsonl"]


def test_qwen_exports_have_the_fields_of_the_official_script(item, tmp_path) -> None:
    """That its reader and its collate take it is shown where a model is at hand, in test_codes.py."""
    folder = tmp_path / "out"
    items = [item("a", language="english"), item("b", file="b.wav", rate=44_100), item("c", length=LONG), item("d", validates=True)]
    write_qwen(items, folder)
    rows = lines(folder / "train.jsonl")
    assert rows[0] == {"audio": "wavs/a.wav", "text": "This is what a said.", "ref_audio": "ref.wav", "language": "english"}
    assert rows[1] == {"audio": "wavs/b.wav", "text": "This is what b said.", "ref_audio": "ref.wav"}
    assert len(lines(folder / "val.jsonl")) == 1
    reference = soundfile.info(folder / "ref.wav")
    assert (reference.samplerate, reference.channels, reference.frames) == (MASTER_RATE, 1, LONG)  # the clip nearest to six seconds
    assert check_dataset([folder / "train.jsonl", folder / "val.jsonl"]).wrong == []


def test_qwen_exports_use_the_most_frequent_reference_and_keep_codes(item, tmp_path) -> None:
    other, named = item("other", length=LONG), item("named", length=30_000)
    codes = np.full((13, 16), 7, np.uint16)
    first = ExportItem("a", "", other.row, codes, item("a").clip, other.clip, False, 1.0)
    second, third = (ExportItem(name, "", named.row, codes, item(name).clip, named.clip, False, 1.0) for name in "bc")
    exported = write_qwen([first, second, third], tmp_path / "out")
    assert soundfile.info(tmp_path / "out" / "ref.wav").frames == 30_000
    assert lines(tmp_path / "out" / "train.jsonl")[0]["audio_codes"] == codes.tolist()
    assert "sft_12hz.py --train_jsonl train.jsonl" in exported.how_to(tmp_path)


def test_qwen_exports_need_a_single_speaker(item, tmp_path) -> None:
    with pytest.raises(UserError, match=r"trains one voice, but the dataset has anna, bob; export one at a time with --speaker NAME"):
        write_qwen([item("a", speaker="anna"), item("b", speaker="bob")], tmp_path / "out")


def test_voice_exports_keep_all_fields_and_are_self_contained(item, tmp_path) -> None:
    folder, codes = tmp_path / "out", np.full((13, 16), 7, np.uint16)
    one, two = item("a", speaker="anna", mood="calm"), item("b", file="b.mp3", rate=44_100, length=44_100, speaker="bob")
    outside = item("ref", file="ref.ogg", length=LONG).clip
    first = dataclasses.replace(one, codes=codes, reference=outside)
    second = dataclasses.replace(two, codes=codes, reference=one.clip, validates=True)
    write_voice([first, second], folder)
    (train,), (val,) = lines(folder / "train.jsonl"), lines(folder / "val.jsonl")
    assert train == one.row.model_dump(exclude_none=True) | {
        **{"audio": "clips/a.flac", "ref_audio": "refs/0000.wav", "split": "train", "audio_codes": codes.tolist()},
    }
    assert (train["mood"], val["audio"], val["ref_audio"], val["split"]) == ("calm", "clips/b.flac", "clips/a.flac", "val")
    assert (folder / "clips" / "a.flac").stat().st_ino == one.clip.stat().st_ino
    for path in folder.rglob("*.*"):
        if path.suffix in (".flac", ".wav"):
            assert (soundfile.info(path).samplerate, soundfile.info(path).channels) == (MASTER_RATE, 1)
