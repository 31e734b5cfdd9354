"""`overtone check-dataset`: valid and invalid datasets, and its report about them."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.qwen3_tts_codec import RELEASED_FORMAT, compute_codec_digest
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_TYPE
from overtone.data_prep.cli import check

ROOT = Path(__file__).resolve().parents[3]
CODES = [[1] * 16] * 13


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def tone(path: Path, seed: int, rate: int = MASTER_RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(seed).uniform(-0.3, 0.3, rate), rate)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three clips of a second each to train on, one to validate on."""
    folder = tmp_path / "data"
    for seed, name in enumerate("abcd"):
        tone(folder / "clips" / f"{name}.flac", seed)
    rows = [row(name) for name in "abcd"]
    write(folder / "train.jsonl", *rows[:3])
    write(folder / "val.jsonl", *rows[3:])
    return folder


def row(name: str, **more: object) -> dict[str, object]:
    plain = {"id": name, "audio": f"clips/{name}.flac", "text": f"Text {name}.", "speaker": "me", "language": "english", "duration": 1.0}
    return {**plain, "ref_audio": "clips/a.flac", "source": f"{name}.wav", "start": 0.0, "end": 1.0, **more}


def run(*argv: object) -> int:
    return check.main([str(one) for one in argv])


def test_a_valid_dataset_is_summarized_by_clips_hours_speakers_and_languages(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert run(data) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train.jsonl                    3 clips     0:00:03.0",
        "val.jsonl                      1 clips     0:00:01.0",
        "speaker me                     4 clips     0:00:04.0",
        "language english               4 clips     0:00:04.0",
        f"next: overtone codes {data} --model Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    ]
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_the_next_command_for_a_dataset_with_codes_is_training(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(data / "train.jsonl", *(row(name, audio_codes=CODES) for name in "abc"))
    write(data / "val.jsonl", row("d", audio_codes=CODES))
    assert run(data) == 0
    assert capsys.readouterr().out.endswith(f"--data.train {data / 'train.jsonl'} --data.val {data / 'val.jsonl'}\n")


def test_every_problem_is_counted_and_the_first_places_are_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "clips" / "bad.flac").write_bytes(b"fLaC" + bytes(100))
    tone(data / "clips" / "fast.flac", 9, 44_100)
    write(
        data / "train.jsonl",
        '{"audio": ',
        row("a", text=""),
        row("b", audio="../b.flac"),
        row("c", duration=1.5, audio_codes=CODES),
        row("bad"),
        row("e"),
        row("c", id="f", audio_codes=CODES[1:]),
        *(row("g", id=f"g{n}") for n in range(4)),
        row("fast", language="klingon", ref_audio="gone.wav", audio_codes=CODES),
        row("d", start=0.5),
    )
    assert run(data) == 1
    printed = capsys.readouterr().out
    for line in (
        "1 line without a JSON object in UTF-8\n    train.jsonl:1: ",
        "1 row without audio or text, or with a wrong field type\n    train.jsonl:2: text: String should have at least 1 character\n",
        "1 path outside of the folder\n    train.jsonl:3: ../b.flac is not under ",
        "5 clips without a file\n    train.jsonl:6: clips/e.flac: there is no such file\n    train.jsonl:8: ",
        "    … and 2 more\n",
        "1 clip that cannot be decoded\n    train.jsonl:5: clips/bad.flac: ",
        "1 row with another duration than the clip\n    train.jsonl:4: ",
        "1 language that the model does not support\n    train.jsonl:12: 'klingon'",
        "1 reference clip that cannot be used\n    train.jsonl:12: gone.wav: no_file",
        "1 row with audio_codes that do not fit the clip\n    train.jsonl:7: 12 frames for 24000 samples",
        "1 clip identical to that of an earlier row\n    train.jsonl:7: clips/c.flac: as in train.jsonl:4\n",
        "1 row with the id of an earlier row\n    val.jsonl:1: d: as in train.jsonl:13\n",
        "1 validation clip also in the training set\n    val.jsonl:1: clips/d.flac: as in train.jsonl:13\n",
        "1 validation clip with an overlap with training clips of the same recording\n    val.jsonl:1: d.wav from 0.5 s",
        "note: 1 clip not at 24000 Hz, resampled when used\n    train.jsonl:12: clips/fast.flac: 44100 Hz\n",
        "language klingon ",
        "problems in 14 of 14 lines; correct or remove these lines, then check again\n",
    ):
        assert line in printed
    assert "next:" not in printed


def test_clips_in_another_form_of_their_names_are_found_and_noted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tone(data / "clips" / unicodedata.normalize("NFD", "fünf.flac"), 5)
    write(data / "train.jsonl", row("a"), row("fünf"), row("c", audio="clips\\C.flac"))
    assert run(data) == 0
    assert "note: 2 paths found in another Unicode form, in another case or with other" in (printed := capsys.readouterr().out)
    assert "train.jsonl:3: clips\\C.flac: c.flac\n" in printed.replace("\\\\", "\\")
    tone(data / "clips" / "Fünf.flac", 6)
    write(data / "train.jsonl", row("a"), row("FÜNF"))
    assert run(data) == 1
    assert "1 path that fits several files\n    train.jsonl:2: 'clips/FÜNF.flac' fits both " in capsys.readouterr().out


def test_codes_of_another_tokenizer_are_detected(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codec = tmp_path / "model" / "speech_tokenizer"
    codec.mkdir(parents=True)
    (codec / "config.json").write_text(json.dumps({"model_type": CODEC_TYPE, "encoder_config": {"codebook_size": 64}}))
    (codec / "model.safetensors").write_bytes(b"weights")
    write(data / "train.jsonl", *(row(name, audio_codes=CODES) for name in "ab"), row("c", audio_codes=[[64] * 16] * 13))
    write(data / "val.jsonl", row("d", audio_codes=CODES))
    (data / "codes").mkdir()
    stored = {"codec_digest": compute_codec_digest(codec), "code_format": asdict(replace(RELEASED_FORMAT, codebook_size=64))}
    (data / "codes" / "summary.json").write_text(json.dumps({**stored, "recipe": "voice_clone"}))
    assert run(data) == 1
    assert run(data, "--model", codec.parent) == 1
    assert (
        "1 row with audio_codes that do not fit the clip\n    train.jsonl:3: codes from 64 to 64, expected 0 to 63"
        in capsys.readouterr().out
    )
    (codec / "model.safetensors").write_bytes(b"other weights")
    assert run(data, "--model", codec.parent) == 1
    assert f"    codes/summary.json: run: overtone codes {data} --model {codec.parent}\n" in capsys.readouterr().out
    (codec / "config.json").write_text(json.dumps({"model_type": CODEC_TYPE}))
    assert run(data, "--model", codec.parent) == 2
    assert "no encoder_config.codebook_size" in capsys.readouterr().err


def test_a_manifest_of_the_official_script_is_checked_with_and_without_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tone(tmp_path / "wavs" / "a.wav", 0)
    tone(tmp_path / "wavs" / "ref.wav", 1, 44_100)
    official = {"audio": "wavs/a.wav", "text": "A.", "ref_audio": str(tmp_path / "wavs" / "ref.wav")}
    path = write(tmp_path / "train_raw.jsonl", official)
    assert run(path) == 0
    printed = capsys.readouterr().out
    assert "note: 1 reference clip not at 24000 Hz" in printed
    assert "note: 1 row without a speaker: use --speaker NAME" in printed
    assert printed.endswith(f"next: overtone codes {path} --model Qwen/Qwen3-TTS-12Hz-1.7B-Base --speaker NAME\n")
    (tmp_path / "lists").mkdir()
    moved = path.rename(tmp_path / "lists" / "train_raw.jsonl")
    assert run(moved) == 1
    assert "use --root FOLDER" in capsys.readouterr().out
    assert run(moved, "--root", tmp_path) == 0
    assert f"next: overtone export-dataset {moved} --root {tmp_path} --as voice --to FOLDER" in capsys.readouterr().out


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["clips/a.flac", "..", "/", "\ud800", "x\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["audio", "text", "id", "duration", "ref_audio", "audio_codes", "language", "speaker", "start", "end", "source", "split"]
)


@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=4), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_row_is_accepted_or_reported_without_a_crash(data: Path, lines: list[dict[str, object]]) -> None:
    write(data / "train.jsonl", *({"audio": "clips/b.flac", "text": "It was late.", **fields} for fields in lines))
    assert run(data) in (0, 1)


def test_control_characters_in_names_are_escaped(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(data / "train.jsonl", row("a", audio="clips/\n\x1b[31m.flac", speaker="\x1b[2J"))
    assert run(data) == 1
    printed = capsys.readouterr().out
    assert "train.jsonl:1: clips/\\n\\x1b[31m.flac: there is no such file" in printed and "\x1b" not in printed


def test_lines_that_break_a_json_parser_are_reported(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "train.jsonl").write_bytes(b"[" * 100_000 + b"\n" + b"9" * 5000 + b"\n\xff\n\x00\n")
    assert run(data) == 1
    assert "4 lines without a JSON object in UTF-8" in capsys.readouterr().out


def test_requests_that_make_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "absent") == 2
    assert "does not exist" in capsys.readouterr().err
    assert run(write(tmp_path / "train.jsonl")) == 2
    assert "has no rows; create some with" in capsys.readouterr().err
    assert run(write(tmp_path / "chats.jsonl", {"messages": []})) == 2
    assert "overtone text" in capsys.readouterr().err


def test_the_verb_runs_as_a_command(data: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "data_prep", "check", str(data)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("clips")) == (0, 4), done.stderr
