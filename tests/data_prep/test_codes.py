"""Codes into the manifests, with a tiny model's real tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_prep import codes, export
from data_prep.audio import MASTER_RATE
from data_prep.qwen import import_qwen_tts
from finetune import files

FRAMES = {"a": 1, "b": 13, "c": 13, "d": 32}
SAMPLES = {"a": 1900, "b": 24_000, "c": 24_960, "d": 60_001}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def data(tmp_path) -> Path:
    """Three clips to train on and one to validate."""
    folder = tmp_path / "data"
    (folder / "clips").mkdir(parents=True)
    for seed, (name, length) in enumerate(SAMPLES.items()):
        samples = np.random.default_rng(seed).uniform(-0.3, 0.3, length)
        soundfile.write(folder / "clips" / f"{name}.flac", samples, MASTER_RATE)
    lines = [{"id": name, "audio": f"clips/{name}.flac", "text": f"Text {name}.", "speaker": "me", "mood": "calm"} for name in SAMPLES]
    write_rows(folder / "train.jsonl", lines[:3])
    write_rows(folder / "val.jsonl", lines[3:])
    return folder


def run(data: Path, nano: Path, *more: object) -> int:
    return codes.main([str(data), "--model", str(nano), "--device", "cpu", *map(str, more)])


def told(data: Path, name: str) -> dict:
    return json.loads((data / "codes" / name).read_text())


def test_every_row_gets_its_codes_and_keeps_the_rest(data, nano) -> None:
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
    summary = told(data, "summary.json")
    assert (summary["clips"], summary["frames"], summary["rejected"]) == (4, sum(FRAMES.values()), 0)
    assert told(data, "run.json") == {"encoded": 4, "reused": 0}
    assert not (data / "rejects.jsonl").exists()


def test_again_nothing_is_encoded_and_the_bytes_stay(data, nano, monkeypatch) -> None:
    assert run(data, nano) == 0
    before = (data / "train.jsonl").read_bytes()
    monkeypatch.setattr(codes, "load_codec", lambda *_: pytest.fail("the tokenizer was loaded"))
    assert run(data, nano) == 0
    assert (data / "train.jsonl").read_bytes() == before
    assert told(data, "run.json") == {"encoded": 0, "reused": 4}


def test_only_a_changed_clip_is_encoded_again(data, nano) -> None:
    assert run(data, nano) == 0
    before = {row["id"]: row["audio_codes"] for row in rows(data / "train.jsonl")}
    soundfile.write(data / "clips" / "b.flac", np.random.default_rng(9).uniform(-0.3, 0.3, 24_000), MASTER_RATE)
    assert run(data, nano) == 0
    after = {row["id"]: row["audio_codes"] for row in rows(data / "train.jsonl")}
    assert told(data, "run.json") == {"encoded": 1, "reused": 3}
    assert {name for name in after if after[name] != before[name]} == {"b"}


def test_batches_change_nothing_and_bound_the_sound(data, nano, tmp_path) -> None:
    other = shutil.copytree(data, tmp_path / "other")
    assert run(data, nano) == 0
    assert run(other, nano, "--batch-seconds", 0.1) == 0
    assert (other / "train.jsonl").read_bytes() == (data / "train.jsonl").read_bytes()


def clip(name: str, seconds: float) -> codes.Clip:
    row = codes.Row(audio=name, text=name)
    return codes.Clip(row, Path("train.jsonl"), Path(name), name, round(seconds * MASTER_RATE))


def test_batches_hold_like_lengths_and_at_most_the_seconds_asked_for() -> None:
    clips = [clip(f"{index:03}", seconds) for index, seconds in enumerate([3, 9, 3.1, 25, 3.2, 9.1, 1])]
    grouped = [[one.samples / MASTER_RATE for one in batch] for batch in codes.batches(clips, 20)]
    assert grouped == [[1, 3, 3.1, 3.2], [9, 9.1], [25]]
    assert codes.batches([], 20) == []


@pytest.mark.parametrize("step", range(1, 9))
def test_interrupted_at_any_change_of_the_disk_a_second_run_completes_it(step, data, nano, tmp_path) -> None:
    whole = shutil.copytree(data, tmp_path / "whole")
    assert run(whole, nano) == 0
    seen = 0

    def die(operation: str, path: Path) -> None:
        nonlocal seen
        seen += operation == "rename"
        if seen == step:
            raise KeyboardInterrupt

    with files.watch(die), pytest.raises(KeyboardInterrupt):
        run(data, nano)
    stored = len(list(data.glob("codes/*/*.npy")))
    assert run(data, nano) == 0
    assert told(data, "run.json") == {"encoded": 4 - stored, "reused": stored}
    for name in ("train.jsonl", "val.jsonl", "codes/summary.json"):
        assert (data / name).read_bytes() == (whole / name).read_bytes()
    assert not [path for path in data.rglob(".*") if ".tmp-" in path.name]


def test_a_bad_clip_goes_to_the_rejects_and_comes_back_when_it_is_mended(data, nano, capsys) -> None:
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


def test_a_clip_that_fails_in_the_tokenizer_takes_no_other_with_it(data, nano, monkeypatch) -> None:
    encode = codes.encode

    def fails_for_c(tokenizer, clips):
        if any(len(one) == SAMPLES["c"] for one in clips):
            raise RuntimeError("out of memory")
        return encode(tokenizer, clips)

    monkeypatch.setattr(codes, "encode", fails_for_c)
    assert run(data, nano) == 0
    assert [row["id"] for row in rows(data / "train.jsonl")] == ["a", "b"]
    (reject,) = rows(data / "rejects.jsonl")
    assert (reject["reasons"], reject["detail"]) == (["codec_error"], "RuntimeError: out of memory")


def test_if_no_clip_can_be_used_nothing_is_changed(data, nano, capsys) -> None:
    before = (data / "train.jsonl").read_bytes()
    shutil.rmtree(data / "clips")
    assert run(data, nano) == 2
    error = capsys.readouterr().err
    assert "nothing was changed; first: clips/a.flac: unreadable" in error
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
    assert told(data, "run.json")["encoded"] == 1  # the same sound twice


def test_the_official_script_reads_the_export_and_finds_the_same_codes(data, nano, tmp_path, monkeypatch) -> None:
    """As its finetuning/prepare_data.py and dataset.py do: paths as they stand, references at 24 kHz whose mels can be joined."""
    import librosa
    import torch

    assert run(data, nano) == 0
    assert export.main([str(data), "--as", "qwen", "--to", str(tmp_path / "official")]) == 0
    monkeypatch.chdir(tmp_path / "official")
    tokenizer = import_qwen_tts().Qwen3TTSTokenizer.from_pretrained(str(nano / "speech_tokenizer"), dtype=torch.float32)
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    mels = []
    for row in rows(Path("train.jsonl")):
        whole = len(librosa.load(row["audio"], sr=None)[0]) // 1920  # it pads no clip, so that a partial last frame is another
        assert tokenizer.encode([row["audio"]]).audio_codes[0].tolist()[:whole] == row["audio_codes"][:whole]
        wave, rate = librosa.load(row["ref_audio"], sr=None, mono=True)
        assert rate == 24_000
        settings = {"n_fft": 1024, "num_mels": 128, "sampling_rate": rate, "hop_size": 256, "win_size": 1024, "fmin": 0, "fmax": 12_000}
        mels.append(mel_spectrogram(torch.from_numpy(wave)[None], **settings).transpose(1, 2))
    assert torch.cat(mels, dim=0).shape[0] == 3


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


def test_bad_requests_name_the_thing(data, nano, tmp_path, capsys) -> None:
    assert run(data, tmp_path / "absent") == 2
    assert "absent: there is no such folder" in capsys.readouterr().err
    assert run(tmp_path, nano) == 2
    assert "train.jsonl does not exist; make it with" in capsys.readouterr().err
    assert run(data, nano, "--batch-seconds", 0) == 2
    assert "--batch-seconds 0.0" in capsys.readouterr().err
