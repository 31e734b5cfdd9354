"""`overtone codes` with the tokenizer of a tiny model."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.qwen3_tts_codec import LoadedQwenCodec, QwenCodec
from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.data_prep.cli import codes, export
from overtone.data_prep.dataset import clip_encoding
from overtone.data_prep.parallel import item_distribution
from overtone.finetune.storage import demo_models, files

ROOT = Path(__file__).resolve().parents[3]
FRAMES = {"a": 1, "b": 13, "c": 13, "d": 32}
SAMPLES = {"a": 1900, "b": 24_000, "c": 24_960, "d": 60_001}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_dataset(folder: Path) -> Path:
    """Three clips to train on and one to validate."""
    (folder / "clips").mkdir(parents=True)
    for seed, (name, length) in enumerate(SAMPLES.items()):
        samples = np.random.default_rng(seed).uniform(-0.3, 0.3, length)
        soundfile.write(folder / "clips" / f"{name}.flac", samples, MASTER_RATE)
    lines = [{"id": name, "audio": f"clips/{name}.flac", "text": f"Text {name}.", "speaker": "me", "mood": "calm"} for name in SAMPLES]
    write_rows(folder / "train.jsonl", lines[:3])
    write_rows(folder / "val.jsonl", lines[3:])
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


@pytest.fixture(scope="module")
def encoded(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset with its codes, from one complete run. For reading: copy it to change it."""
    folder = write_dataset(tmp_path_factory.mktemp("encoded") / "data")
    assert run(folder, nano) == 0
    return folder


@pytest.fixture
def encoded_copy(encoded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoded, tmp_path / "copy"))


def run(data: Path, nano: Path, *more: object) -> int:
    return codes.main([str(data), "--model", str(nano), "--device", "cpu", "--workers", "0", *map(str, more)])


def read_run_json(data: Path) -> dict:
    return json.loads((data / "codes" / "run.json").read_text())


def test_every_row_gets_its_codes_and_keeps_its_other_fields(data, nano) -> None:
    before = {row["id"]: row for row in rows(data / "train.jsonl") + rows(data / "val.jsonl")}
    assert run(data, nano) == 0
    assert [row["id"] for row in rows(data / "train.jsonl")] == ["a", "b", "c"]
    assert [row["id"] for row in rows(data / "val.jsonl")] == ["d"]
    for row in rows(data / "train.jsonl") + rows(data / "val.jsonl"):
        found = np.array(row.pop("audio_codes"))
        assert found.shape == (FRAMES[row["id"]], 16)
        assert found.min() >= 0
        assert found.max() < 64
        assert row.pop("language") == "auto"
        assert row == before[row["id"]]
    summary = json.loads((data / "codes" / "summary.json").read_text())
    assert (summary["clips"], summary["frames"], summary["rejected"]) == (4, sum(FRAMES.values()), 0)
    assert read_run_json(data) == {"encoded": 4, "reused": 0}
    assert not (data / "rejects.jsonl").exists()


def test_the_summary_and_the_next_command_name_a_demo_model(data, nano, tmp_path, monkeypatch, capsys) -> None:
    made = tmp_path / "toy"
    shutil.copytree(nano / "speech_tokenizer", made / "speech_tokenizer")
    (made / "README.md").write_text("# toy\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").write_bytes(demo_models.pack(made))
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demo_models._warn.cache_clear()  # another test of this process may have used the name
    assert codes.main([str(data), "--model", "toy", "--device", "cpu", "--workers", "0"]) == 0
    assert "synthetic voices" in json.loads((data / "codes" / "summary.json").read_text())["demo_model"]
    printed = capsys.readouterr()
    assert "warning: demo model toy" in printed.err and "--model.source" not in printed.out, "a codec alone is no base"
    shutil.copy(nano / "config.json", made)
    (tmp_path / "models" / "whole.zip").write_bytes(demo_models.pack(made.rename(tmp_path / "whole")))
    assert codes.main([str(data), "--model", "whole", "--device", "cpu", "--workers", "0"]) == 0
    assert f"overtone train --recipe voice_clone --model.source whole --data.train {data}" in capsys.readouterr().out


def test_a_second_run_encodes_nothing_and_writes_the_same_bytes(encoded, encoded_copy, nano, monkeypatch) -> None:
    monkeypatch.setattr(QwenCodec, "load", lambda *_: pytest.fail("the codec was loaded"))
    assert run(encoded_copy, nano) == 0
    assert (encoded_copy / "train.jsonl").read_bytes() == (encoded / "train.jsonl").read_bytes()
    assert read_run_json(encoded_copy) == {"encoded": 0, "reused": 4}


def test_time_shifts_add_copies_with_the_codes_of_a_later_start(encoded, encoded_copy, nano, capsys) -> None:
    data = encoded_copy
    assert run(data, nano, "--time-shifts", 3) == 0
    assert f"--data.train {data / 'train.shifted.jsonl'} --data.val {data / 'val.jsonl'}" in capsys.readouterr().out
    plain, copies = rows(data / "train.jsonl"), rows(data / "train.shifted.jsonl")[3:]
    assert (data / "train.jsonl").read_bytes() == (encoded / "train.jsonl").read_bytes()
    assert rows(data / "train.shifted.jsonl")[:3] == plain and not (data / "val.shifted.jsonl").exists()
    assert [(row["id"], row["time_shift"]) for row in copies] == [(name, shift) for name in "abc" for shift in (0.02, 0.04, 0.06)]
    assert read_run_json(data) == {"encoded": 9, "reused": 4}
    summary = json.loads((data / "codes" / "summary.json").read_text())
    assert (summary["clips"], summary["frames"], summary["time_shifts"]) == (4, sum(FRAMES.values()), 3)
    samples, _ = soundfile.read(data / "clips" / "b.flac", dtype="float32")
    (later,) = QwenCodec(nano / "speech_tokenizer").load("cpu").encode([np.pad(samples, (960, 0))])
    (copy,) = (row for row in copies if row["id"] == "b" and row["time_shift"] == 0.04)
    assert copy == {**plain[1], "audio_codes": later.tolist(), "time_shift": 0.04}


def test_copies_of_an_earlier_run_are_removed(encoded_copy, nano, capsys) -> None:
    assert run(encoded_copy, nano, "--time-shifts", 1) == 0
    assert run(encoded_copy, nano) == 0
    assert not (encoded_copy / "train.shifted.jsonl").exists()
    printed = capsys.readouterr().out
    assert "train.shifted.jsonl is removed: it was of an earlier run" in printed and "train.jsonl --data.val" in printed


def test_copies_are_not_encoded_as_if_they_were_clips(encoded_copy, nano, capsys) -> None:
    assert run(encoded_copy, nano, "--time-shifts", 1) == 0
    assert run(encoded_copy / "train.shifted.jsonl", nano) == 2
    assert "is a time-shifted copy; give the original clips, and --time-shifts N" in capsys.readouterr().err


def test_a_copy_that_fails_in_the_tokenizer_is_named_and_left_out(encoded_copy, nano, monkeypatch, capsys) -> None:
    encode = LoadedQwenCodec.encode

    def refuse(self: LoadedQwenCodec, clips: list[Any]) -> list[Any]:
        if any(len(clip) == SAMPLES["c"] + 960 for clip in clips):
            raise RuntimeError("no codes")
        return encode(self, clips)

    monkeypatch.setattr(LoadedQwenCodec, "encode", refuse)
    assert run(encoded_copy, nano, "--time-shifts", 1) == 0
    assert "not in the copies: clips/c.flac, shifted by 960 samples: RuntimeError: no codes" in capsys.readouterr().err
    assert [row["id"] for row in rows(encoded_copy / "train.shifted.jsonl")] == ["a", "b", "c", "a", "b"]
    assert [row["id"] for row in rows(encoded_copy / "train.jsonl")] == ["a", "b", "c"]


def test_only_a_changed_clip_is_encoded_again(encoded_copy, nano) -> None:
    data = encoded_copy
    before = {row["id"]: row["audio_codes"] for row in rows(data / "train.jsonl")}
    soundfile.write(data / "clips" / "b.flac", np.random.default_rng(9).uniform(-0.3, 0.3, 24_000), MASTER_RATE)
    assert run(data, nano) == 0
    after = {row["id"]: row["audio_codes"] for row in rows(data / "train.jsonl")}
    assert read_run_json(data) == {"encoded": 1, "reused": 3}
    assert {name for name in after if after[name] != before[name]} == {"b"}


@pytest.fixture
def pickled_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `distribute_items` sends to a worker or gets back from it is pickled, as between processes."""

    def distribute(items: Any, make: Any, *rest: Any) -> Iterator[Any]:
        yield from pickle.loads(pickle.dumps(list(item_distribution.distribute_items(*pickle.loads(pickle.dumps((items, make))), *rest))))

    monkeypatch.setattr(clip_encoding, "distribute_items", distribute)


@pytest.mark.usefixtures("pickled_workers")
@pytest.mark.parametrize("seconds", [0.1, 2.1])
def test_the_batch_size_changes_no_code_and_progress_is_logged(seconds, data, encoded, nano, capsys) -> None:
    assert run(data, nano, "--batch-seconds", seconds) == 0
    *_, last = (line for line in capsys.readouterr().out.splitlines() if line.startswith("["))
    assert last.startswith("[4/4] clips encoded · ") and "× real time, " in last and last.endswith(" left")
    assert (data / "train.jsonl").read_bytes() == (encoded / "train.jsonl").read_bytes()


def test_after_ctrl_c_the_batch_in_progress_completes_and_the_next_run_resumes(data, nano, capsys) -> None:
    before = (data / "train.jsonl").read_bytes()
    stored = 0

    def press(operation: str, path: Path) -> None:
        nonlocal stored
        stored += operation == "rename" and path.suffix == ".npy"
        if stored == 1:
            stored += 1
            os.kill(os.getpid(), signal.SIGINT)

    with files.watch(press):
        assert run(data, nano, "--batch-seconds", 2.1) == 130  # a and b are the first batch
    printed = capsys.readouterr()
    assert "[2/4]" in printed.out and "[4/4]" not in printed.out
    assert "stopped: 2 of 4 clips are encoded; completed work is kept: run the same command again to resume" in printed.err
    assert (data / "train.jsonl").read_bytes() == before
    assert run(data, nano) == 0
    assert read_run_json(data) == {"encoded": 2, "reused": 2}


@pytest.mark.slow
def test_after_a_kill_only_missing_clips_are_encoded(data, nano, tmp_path) -> None:
    for seed in range(24):
        soundfile.write(data / "clips" / f"{seed}.flac", np.random.default_rng(100 + seed).uniform(-0.3, 0.3, 48_000), MASTER_RATE)
    write_rows(data / "train.jsonl", [{"audio": f"clips/{seed}.flac", "text": "It was late.", "speaker": "me"} for seed in range(24)])
    whole = shutil.copytree(data, tmp_path / "whole")
    assert run(whole, nano) == 0
    command = [sys.executable, "-m", "data_prep", "codes", str(data), "--model", str(nano), "--device", "cpu", "--batch-seconds", "0.1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if line.startswith("[2/25]"))
        running.kill()
    stored = len(list(data.glob("codes/*/*.npy")))
    assert 2 <= stored < 25
    assert run(data, nano) == 0
    assert read_run_json(data) == {"encoded": 25 - stored, "reused": stored}
    assert (data / "train.jsonl").read_bytes() == (whole / "train.jsonl").read_bytes()


@pytest.mark.parametrize("step", range(1, 9))
def test_a_run_interrupted_before_any_rename_is_completed_by_the_next(step, data, encoded, nano) -> None:
    seen = 0

    def die(operation: str, path: Path) -> None:
        nonlocal seen
        seen += operation == "rename"
        if seen == step:
            raise KeyboardInterrupt

    with files.watch(die):
        assert run(data, nano) == 130
    stored = len(list(data.glob("codes/*/*.npy")))
    assert run(data, nano) == 0
    assert read_run_json(data) == {"encoded": 4 - stored, "reused": stored}
    for name in ("train.jsonl", "val.jsonl", "codes/summary.json"):
        assert (data / name).read_bytes() == (encoded / name).read_bytes()
    assert not [path for path in data.rglob(".*") if ".tmp-" in path.name]


def test_a_bad_clip_is_rejected_and_returns_when_it_is_repaired(data, nano, capsys) -> None:
    earlier = {"source": "x.wav", "stage": "clip", "reasons": ["noisy"]}
    write_rows(data / "rejects.jsonl", [earlier])
    good = (data / "clips" / "b.flac").read_bytes()
    (data / "clips" / "b.flac").write_bytes(bytes(range(256)) * 40)
    (data / "clips" / "d.flac").unlink()
    assert run(data, nano) == 0
    assert "rejected clips/b.flac: unreadable" in capsys.readouterr().err
    assert [row["id"] for row in rows(data / "train.jsonl")] == ["a", "c"]
    assert rows(data / "val.jsonl") == []
    kept, b, d = rows(data / "rejects.jsonl")
    assert kept["reasons"] == ["noisy"]
    assert (b["stage"], b["reasons"], b["row"]["text"]) == ("codes", ["unreadable"], "Text b.")
    assert d["row"]["id"] == "d"
    (data / "clips" / "b.flac").write_bytes(good)
    assert run(data, nano) == 0
    assert sorted(row["id"] for row in rows(data / "train.jsonl")) == ["a", "b", "c"]
    assert all(row["audio_codes"] and row["mood"] == "calm" for row in rows(data / "train.jsonl"))
    assert [reject.get("row", {}).get("id") for reject in rows(data / "rejects.jsonl")] == [None, "d"]


def test_a_clip_that_fails_in_the_tokenizer_does_not_affect_the_others(data, nano, monkeypatch) -> None:
    encode = LoadedQwenCodec.encode

    def fails_for_c(codec, clips):
        if any(len(one) == SAMPLES["c"] for one in clips):
            raise RuntimeError("out of memory")
        return encode(codec, clips)

    monkeypatch.setattr(LoadedQwenCodec, "encode", fails_for_c)
    assert run(data, nano) == 0
    assert [row["id"] for row in rows(data / "train.jsonl")] == ["a", "b"]
    (reject,) = rows(data / "rejects.jsonl")
    assert (reject["reasons"], reject["detail"]) == (["codec_error"], "RuntimeError: out of memory")


def test_if_no_clip_can_be_used_nothing_is_changed(data, nano, capsys) -> None:
    before = (data / "train.jsonl").read_bytes()
    shutil.rmtree(data / "clips")
    assert run(data, nano) == 2
    error = capsys.readouterr().err
    assert "nothing was changed; first: clips/a.flac: no_file" in error
    assert (data / "train.jsonl").read_bytes() == before
    assert not (data / "rejects.jsonl").exists()


def test_files_of_the_official_script_are_taken_at_any_rate(data, nano, tmp_path) -> None:
    for name in ("a", "b"):
        soundfile.write(data / f"{name}.wav", np.random.default_rng(1).uniform(-0.3, 0.3, 44_100), 44_100)
    write_rows(data / "train.jsonl", [{"audio": f"{name}.wav", "text": name, "ref_audio": "a.wav"} for name in ("a", "b")])
    (data / "val.jsonl").unlink()
    assert run(data, nano, "--speaker", "me") == 0
    for row in rows(data / "train.jsonl"):
        assert (row["speaker"], row["ref_audio"], len(row["audio_codes"])) == ("me", "a.wav", 13)
    assert read_run_json(data)["encoded"] == 1  # the same sound twice


def test_the_official_script_reads_the_export_and_finds_the_same_codes(encoded, nano, tmp_path, monkeypatch) -> None:
    """As its finetuning/prepare_data.py and dataset.py do: paths as they stand, references at 24 kHz whose mels can be joined."""
    import torch

    assert export.main([str(encoded), "--as", "qwen", "--to", str(tmp_path / "official")]) == 0
    monkeypatch.chdir(tmp_path / "official")
    tokenizer = import_qwen_tts().Qwen3TTSTokenizer.from_pretrained(str(nano / "speech_tokenizer"), dtype=torch.float32)
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    mels = []
    for row in rows(Path("train.jsonl")):
        whole = len(import_librosa().load(row["audio"], sr=None)[0]) // 1920  # it pads no clip, so that a partial last frame is another
        assert tokenizer.encode([row["audio"]]).audio_codes[0].tolist()[:whole] == row["audio_codes"][:whole]
        wave, rate = import_librosa().load(row["ref_audio"], sr=None, mono=True)
        assert rate == 24_000
        settings = {"n_fft": 1024, "num_mels": 128, "sampling_rate": rate, "hop_size": 256, "win_size": 1024, "fmin": 0, "fmax": 12_000}
        mels.append(mel_spectrogram(torch.from_numpy(wave)[None], **settings).transpose(1, 2))
    assert torch.cat(mels, dim=0).shape[0] == 3


def test_another_file_in_the_folder_keeps_its_rows_and_its_rejects(data, nano) -> None:
    """Official files bear any name, and lie several in one folder."""
    raw = data / "train_raw.jsonl"
    write_rows(raw, [{"audio": str(data / "clips" / "a.flac"), "text": "a"}, {"audio": "clips/gone.flac", "text": "gone"}])
    assert run(raw, nano, "--speaker", "me") == 0
    (row,) = rows(raw)
    assert (row["text"], len(row["audio_codes"])) == ("a", FRAMES["a"])
    assert not any("audio_codes" in row for row in rows(data / "train.jsonl"))
    assert run(data, nano) == 0
    assert read_run_json(data) == {"encoded": 3, "reused": 1}
    assert [reject["manifest"] for reject in rows(data / "rejects.jsonl")] == ["train_raw.jsonl"]
    assert len(rows(raw)) == 1
    shutil.copy(data / "clips" / "b.flac", data / "clips" / "gone.flac")
    assert run(raw, nano, "--speaker", "me") == 0
    assert [row["text"] for row in rows(raw)] == ["a", "gone"]
    assert rows(data / "rejects.jsonl") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"audio": ', "train.jsonl:4: not a JSON object"),
        ('{"audio": "../x.wav", "text": "a", "speaker": "me"}', "train.jsonl:4: audio: '../x.wav' leads outside"),
        ('{"audio": "clips/a.flac", "text": "a"}', "train.jsonl:4: the row names no speaker"),
    ],
)
def test_bad_lines_stop_before_anything_is_changed(line, message, data, nano, capsys) -> None:
    with (data / "train.jsonl").open("a") as file:
        file.write(line + "\n")
    before = (data / "train.jsonl").read_bytes()
    assert run(data, nano) == 2
    assert message in capsys.readouterr().err
    assert (data / "train.jsonl").read_bytes() == before
    assert not (data / "codes").exists()


def test_clips_in_another_form_of_their_names_are_encoded_and_counted(data, nano, capsys) -> None:
    path = data / "train.jsonl"
    path.write_text(path.read_text().replace('"audio":"clips/', '"audio":"CLIPS/').replace('"audio": "clips/', '"audio": "CLIPS/'))
    assert run(data, nano) == 0
    assert "found in another form of the name, such as CLIPS/" in capsys.readouterr().out
    assert all(row["audio"].startswith("CLIPS/") and row["audio_codes"] for row in rows(path))


def test_invisible_characters_of_other_programs_leave_the_texts_and_are_counted(data, nano, capsys) -> None:
    path = data / "train.jsonl"
    before = rows(path)
    path.write_text("".join(json.dumps(row | {"text": f"\u200b{row['text']}\u00ad"}) + "\n" for row in before))
    assert run(data, nano) == 0
    assert [row["text"] for row in rows(path)] == [row["text"] for row in before]
    said = f"left out of the texts: {len(before)} soft hyphens, {len(before)} zero-width characters"
    assert said in capsys.readouterr().out


def test_bad_requests_name_the_thing(data, nano, tmp_path, capsys) -> None:
    assert run(data, tmp_path / "absent") == 2
    assert "absent: no such folder" in capsys.readouterr().err
    assert run(tmp_path, nano) == 2
    assert "no train.jsonl in it; give a dataset folder" in capsys.readouterr().err
    assert run(data, nano, "--batch-seconds", 0) == 2
    assert "--batch-seconds 0.0" in capsys.readouterr().err
    assert run(data, nano, "--time-shifts", 64) == 2
    assert "--time-shifts 64: give a number from 0 to 63" in capsys.readouterr().err
