"""`overtone export-dataset`: file names, refusals, and a folder that appears completely or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.cli import check, export, voice
from overtone.data_prep.dataset.manifest_line_reader import find_manifests
from overtone.data_prep.manifest import read_rows
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models, files

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two clips of one speaker, one of another, and one to validate on."""
    folder = tmp_path / "data"
    (folder / "clips" / "x y").mkdir(parents=True)
    names = {"clips/a.flac": "me", "clips/x y/b.flac": "me", "clips/c.flac": "you", "clips/d.flac": "me"}
    for seed, name in enumerate(names):
        soundfile.write(folder / name, np.random.default_rng(seed).uniform(-0.3, 0.3, 24_000), MASTER_RATE)
    rows = [json.dumps({"audio": name, "text": "It was late.", "speaker": speaker}) for name, speaker in names.items()]
    (folder / "train.jsonl").write_text("\n".join(rows[:3]))
    (folder / "val.jsonl").write_text(rows[3])
    return folder


def run(*argv: object) -> int:
    return export.main([str(one) for one in argv])


def found(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_clips_are_named_after_their_ids_or_their_places(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "--as", "audiofolder", "--to", tmp_path / "new" / "out") == 0
    assert found(tmp_path / "new") == [
        *("out/train/clips_a.flac", "out/train/clips_c.flac", "out/train/clips_x_y_b.flac", "out/train/metadata.jsonl"),
        *("out/validation/clips_d.flac", "out/validation/metadata.jsonl"),
    ]
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        f"{tmp_path / 'new' / 'out'}: 4 clips, 0:00:04.0",
        f'datasets.load_dataset("audiofolder", data_dir="{tmp_path / "new" / "out"}")',
    ]


def test_one_speaker_of_several(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(data, "--as", "qwen", "--to", out) == 2
    assert "but the dataset has me, you; export one at a time with --speaker NAME" in capsys.readouterr().err
    assert run(data, "--as", "qwen", "--to", out, "--speaker", "anna") == 2
    assert "no clip of speaker 'anna'; speakers in the dataset: me, you" in capsys.readouterr().err
    assert run(data, "--as", "qwen", "--to", out, "--speaker", "me") == 0
    assert "cd " in capsys.readouterr().out
    assert found(out) == ["ref.wav", "train.jsonl", "val.jsonl", "wavs/clips_a.wav", "wavs/clips_d.wav", "wavs/clips_x_y_b.wav"]


def test_skipped_clips_are_counted_with_the_reason(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "val.jsonl").write_text('{"audio": "clips/d.flac", "text": "either|or", "speaker": "me"}')
    assert run(data, "--as", "ljspeech", "--to", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "out: 3 clips, 0:00:03.0\n1 skipped:\n    val.jsonl:1: the text contains |" in printed
    (data / "train.jsonl").write_text("\n")
    assert run(data, "--as", "ljspeech", "--to", tmp_path / "none") == 2
    assert "nothing to export; val.jsonl:1: the text contains |" in capsys.readouterr().err
    assert not list(tmp_path.glob(".none*"))


def test_a_manifest_with_scattered_clips_is_exported_into_one_folder(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lists").mkdir()
    raw = tmp_path / "lists" / "raw.jsonl"
    raw.write_text(json.dumps({"audio": str(data / "clips" / "a.flac"), "text": "It was late.", "ref_audio": "data/clips/d.flac"}))
    with pytest.raises(UserError, match=rf"leads outside .* overtone export-dataset {raw} --root FOLDER --as voice --to NEW"):
        list(read_rows(raw, speaker="me"))
    assert run(raw, "--root", tmp_path, "--as", "voice", "--to", tmp_path / "out") == 0
    assert f"next: overtone codes {tmp_path / 'out'} --model Qwen" in capsys.readouterr().out
    (row,) = read_rows(tmp_path / "out" / "train.jsonl", speaker="me")
    assert (row.audio, row.ref_audio, row.text) == ("clips/data_clips_a.flac", "refs/0000.wav", "It was late.")
    assert check.check_dataset([tmp_path / "out" / "train.jsonl"]).wrong == []
    assert run(raw, "--root", tmp_path, "--as", "qwen", "--to", tmp_path / "official") == 0
    official = {"audio": "wavs/data_clips_a.wav", "text": "It was late.", "ref_audio": "ref.wav"}
    assert json.loads((tmp_path / "official" / "train.jsonl").read_text()) == official


def test_a_lost_reference_matters_only_where_it_is_exported(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "val.jsonl").write_text('{"audio": "clips/d.flac", "text": "It was late.", "speaker": "me", "ref_audio": "gone.wav"}')
    for layout in ("qwen", "voice"):
        assert run(data, "--as", layout, "--to", tmp_path / layout, "--speaker", "me") == 2
        assert "1 problems, first at val.jsonl:1: gone.wav: no_file: there is no such file" in capsys.readouterr().err
    assert run(data, "--as", "ljspeech", "--to", tmp_path / "ljspeech") == 0


def test_requests_that_make_no_sense_change_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = ("--as", "ljspeech", "--to", tmp_path / "out")
    assert run(data, "--as", "ljspeech", "--to", data) == 2
    assert "exists already; remove it, or choose another" in capsys.readouterr().err
    rows = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(rows + '\n{"audio": "gone.wav", "text": "a"}\n[]\n')
    assert run(data, *to) == 2
    assert f"2 problems, first at train.jsonl:4: gone.wav: there is no such file; list all with: overtone check-dataset {data}" in (
        capsys.readouterr().err
    )
    (data / "train.jsonl").write_text(rows.replace("x y", "x_y"))
    (data / "clips" / "x y").rename(data / "clips" / "x_y")
    (data / "clips_x_y_b.flac").write_bytes((data / "clips" / "a.flac").read_bytes())
    (data / "val.jsonl").write_text('{"audio": "clips_x_y_b.flac", "text": "a"}')
    assert run(data, *to) == 2
    assert "val.jsonl:1: its file name 'clips_x_y_b' is also that of train.jsonl:2" in capsys.readouterr().err
    (data / "train.jsonl").write_text("")
    (data / "val.jsonl").write_text("")
    assert run(data, *to) == 2
    assert "has no rows" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("step", [1, 3, 5, 8])
def test_an_interrupted_export_leaves_no_partial_folder(step: int, data: Path, tmp_path: Path) -> None:
    to, seen = ("--as", "ljspeech", "--to", tmp_path / "out"), 0

    def die(operation: str, path: Path) -> None:
        nonlocal seen
        seen += operation in ("write", "sync", "rename")
        if seen == step:
            raise KeyboardInterrupt

    with files.watch(die):
        assert run(data, *to) == 130
    assert not (tmp_path / "out").exists()
    assert run(data, *to) == 0
    assert len(found(tmp_path / "out")) == 6
    assert not list(tmp_path.glob(".out*"))


def test_the_verb_runs_as_a_command(data: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "data_prep", "export", str(data), "--as", "ljspeech", "--to", str(tmp_path / "a")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 clips" in done.stdout


@pytest.mark.slow
def test_an_ljspeech_export_can_be_prepared_again_with_its_speakers(tmp_path: Path) -> None:
    sample = demo_models.data_folder() / "sample"
    texts = ("--transcripts", "--language", "en", "--workers", "1")
    assert voice.main([str(sample), "--out", str(tmp_path / "first"), *texts, "--speaker-from", "folder", "--val-share", "0"]) == 0
    assert run(tmp_path / "first", "--as", "ljspeech", "--to", tmp_path / "lj") == 0
    assert voice.main([str(tmp_path / "lj"), "--out", str(tmp_path / "again"), *texts, "--speaker-from", "transcript"]) == 0
    first, again = ({row.text: row.speaker for row in read_rows(tmp_path / name / "train.jsonl")} for name in ("first", "again"))
    assert again.items() <= first.items()
    assert set(again.values()) == {"rms", "slt"} and len(again) > 0.7 * len(first)
    assert check.check_dataset(find_manifests(tmp_path / "again")).wrong == []
