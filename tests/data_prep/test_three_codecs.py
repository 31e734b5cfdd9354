"""The verbs on one dataset with the codes of each supported codec: 16, 4 (32 in the release) and 7 codes a frame."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.cli import check, codes, export, report
from overtone.data_prep.manifest import read_rows

MODELS = ("tiny_csm", "tiny_snac")
RECIPES = {"nano": "voice_clone", "tiny_csm": "csm", "tiny_snac": "codec_lm"}


def encode(dataset: Path, model: Path) -> int:
    return codes.main([str(dataset), "--model", str(model), "--device", "cpu", "--workers", "0"])


def source_option(model: Path, name: str) -> str:
    """How the next command names the base: a local folder that holds more than a codec."""
    return "" if name == "tiny_snac" else f" --model.source {model}"


@pytest.fixture(scope="module")
def datasets(mixed_dataset: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The dataset with the codes of each model. For reading."""
    made = {}
    for name in RECIPES:
        made[name] = Path(shutil.copytree(mixed_dataset, tmp_path_factory.mktemp(name) / "data"))
        assert encode(made[name], request.getfixturevalue(name)) == 0
    return made


@pytest.mark.parametrize("name", MODELS)
def test_the_rows_get_the_codes_of_the_codec_and_the_next_command_its_recipe(
    name: str, datasets: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    codec = open_codec(str(request.getfixturevalue(name)))
    loaded, dataset = codec.load("cpu"), datasets[name]
    rows = list(read_rows(dataset / "train.jsonl"))
    assert len(rows) > 3
    for row in rows:
        found = np.array(row.audio_codes)
        assert row.duration is not None and found.shape == (-(-round(row.duration * 24_000) // codec.samples_per_frame), codec.codebooks)
        assert loaded.decode(found.astype(np.uint16)).shape == (len(found) * codec.samples_per_frame,)
    summary = json.loads((dataset / "codes" / "summary.json").read_text())
    assert (summary["codec_digest"], summary["recipe"]) == (codec.digest(), RECIPES[name])
    copy = shutil.copytree(dataset, tmp_path / "copy")
    assert encode(copy, codec.model) == 0
    printed = capsys.readouterr().out
    assert f"; 0 encoded now, {summary['rejected']} rejected" in printed
    assert f"\nnext: overtone train --recipe {RECIPES[name]}{source_option(codec.model, name)} --data.train {copy}" in printed


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("named", [True, False], ids=["with --model", "without"])
def test_check_accepts_the_codes_and_names_the_recipe(
    name: str, named: bool, datasets: dict[str, Path], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = request.getfixturevalue(name)
    assert check.main([str(datasets[name]), *(["--model", str(folder)] if named else [])]) == 0
    source = source_option(folder, name)
    assert f"\nnext: overtone train --recipe {RECIPES[name]}{source} --data.train " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("made", "model", "difference"),
    [
        ("tiny_snac", "nano", "7 codes a frame, 11.72 frames/s; --model has 16 codes a frame, 12.5 frames/s"),
        ("nano", "tiny_csm", "16 codes a frame, 12.5 frames/s; --model has 4 codes a frame, 12.5 frames/s"),
        ("tiny_csm", "tiny_snac", "4 codes a frame, 12.5 frames/s; --model has 7 codes a frame, 11.72 frames/s"),
    ],
)
def test_codes_of_another_codec_are_one_clear_problem(
    made: str, model: str, difference: str, datasets: dict[str, Path], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, dataset = request.getfixturevalue(model), datasets[made]
    assert check.main([str(dataset), "--model", str(folder)]) == 1
    printed = capsys.readouterr().out
    command = f"run: overtone codes {dataset} --model {folder}"
    assert f"1 code store of another codec than that of --model\n    codes/summary.json: {difference}; {command}\n" in printed
    assert "audio_codes that do not fit" not in printed and "\n1 problem in 1 of " in printed


def test_codes_whose_codec_is_not_recorded_are_checked_as_the_default_ones_and_it_is_said(
    datasets: dict[str, Path], tiny_csm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shutil.copytree(datasets["tiny_csm"], tmp_path / "data", ignore=shutil.ignore_patterns("codes")) / "train.jsonl"
    assert check.main([str(file)]) == 1
    printed = capsys.readouterr().out
    assert "frame 0 has 4 codes, expected 16" in printed
    assert "note: 1 dataset whose codec is not recorded\n    train.jsonl:1: assumed: Qwen3-TTS 12 Hz " in printed
    assert "16 codes a frame, 12.5 frames/s; for another one, give its --model\n" in printed
    assert check.main([str(file), "--model", str(tiny_csm)]) == 0
    assert "--recipe csm " in capsys.readouterr().out


@pytest.mark.parametrize("name", MODELS)
def test_a_language_that_only_the_default_model_rejects_is_accepted(
    name: str, datasets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dataset, status in ((datasets[name], 0), (datasets["nano"], 1)):
        copy = shutil.copytree(dataset, tmp_path / dataset.parent.name)
        (copy / "train.jsonl").write_text((copy / "train.jsonl").read_text().replace('"language": "english"', '"language": "swedish"'))
        assert check.main([str(copy)]) == status
    assert "'swedish'; supported: chinese, " in capsys.readouterr().out


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_keeps_the_codes_and_what_is_known_about_their_codec(
    name: str, datasets: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    model, copy = request.getfixturevalue(name), tmp_path / "copy"
    assert export.main([str(datasets[name]), "--as", "voice", "--to", str(copy)]) == 0
    assert capsys.readouterr().out.endswith(f"next: overtone check-dataset {shlex.quote(str(copy))}\n")
    before, after = (sorted(str(row.audio_codes) for row in read_rows(folder / "train.jsonl")) for folder in (datasets[name], copy))
    assert before == after
    assert check.main([str(copy)]) == check.main([str(copy), "--model", str(model)]) == 0
    assert capsys.readouterr().out.count(f"--recipe {RECIPES[name]} ") == 2


@pytest.mark.parametrize("name", RECIPES)
def test_the_official_script_gets_no_codes_of_another_codec(
    name: str, datasets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main([str(datasets[name]), "--as", "qwen", "--to", str(tmp_path / "official")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "official" / "train.jsonl").read_text().splitlines()]
    printed = capsys.readouterr()
    assert all(("audio_codes" in row) == (name == "nano") for row in rows) and len(rows) > 3
    assert ("note: the codes are dropped, because they are of another codec" in printed.err) == (name != "nano")
    assert ("prepare_data.py" in printed.out) == (name != "nano")


@pytest.mark.parametrize("name", MODELS)
def test_the_report_is_made(name: str, datasets: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(datasets[name], tmp_path / "copy")
    assert report.main([str(copy)]) == 0
    assert (copy / "report.html").stat().st_size > 10_000
