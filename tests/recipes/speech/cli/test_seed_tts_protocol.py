"""`eval-voice --protocol seed-tts-eval`: from prompts and a model to the protocol's files, and refusals before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from overtone.data_prep.clips import dnsmos
from overtone.finetune import __main__ as verbs
from overtone.finetune.errors import UserError
from overtone.finetune.storage.synthetic_audio_mark import find_synthetic_mark
from overtone.recipes.speech.cli import seed_tts_protocol
from overtone.recipes.speech.cli.evaluation_arguments import parse
from overtone.recipes.speech.evaluation.seed_tts_eval.prompts import read_prompts
from overtone.recipes.voice_clone.speech_registration import SPEECH
from tests.recipes.speech.evaluation.seed_tts_eval import stand_ins, whisper_models

Command = Callable[..., list[str]]
GOLDEN = stand_ins.read_golden()


@pytest.fixture(scope="module")
def asr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_models.save_whisper(tmp_path_factory.mktemp("asr") / "tiny-whisper")


@pytest.fixture(scope="module")
def similarity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("similarity") / "stand_in.pth"
    weights = {name: torch.from_numpy(value) for name, value in stand_ins.make_weights(GOLDEN["shapes"]).items()}
    torch.save({"model": weights}, path)
    return path


@pytest.fixture
def command(nano: Path, tmp_path: Path) -> Command:
    """Makes a command line that clones the prompts of a folder."""

    def make(*lines: str, language: str = "en") -> list[str]:
        for number in range(2):
            stand_ins.write_wave(tmp_path / f"p{number}.wav", {"seed": number, "samples": 30_000, "rate": 24_000, "channels": 1})
        (tmp_path / "meta.lst").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        brief = ["--max-seconds", "0.4", "--protocol-language", language, "--out", str(tmp_path / "out")]
        data = ["--protocol", "seed-tts-eval", "--data", str(tmp_path / "meta.lst")]
        return ["eval-voice", "--model", str(nano), "--recipe", "voice_clone", *data, *brief]

    return make


LINES = ("one|A prompt.|p0.wav|The first text.", "two|A prompt.|p1.wav|Another text.", "three|A prompt.|gone.wav|Never spoken.")


def test_prompts_are_spoken_and_scored(
    command: Command, asr: Path, similarity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--protocol-asr", str(asr), "--protocol-similarity", str(similarity)]
    assert verbs.main([*command(*LINES), *models, "--seed", "3"]) == 0
    out = tmp_path / "out"
    found = json.loads((out / "seed-tts-eval.json").read_text())
    (scores,) = found["systems"].values()
    assert scores["scored"] == {"wer": 2, "sim": 2} and list(scores["missing"]) == ["three"] and "gone.wav" in scores["missing"]["three"]
    assert found["comparable"] is False and any("1 utterances are missing" in line for line in found["differences"])
    settings = found["settings"]
    assert settings["seed"] == 3 and settings["sampling"] == "the model's own settings" and settings["asr"]["name"] == str(asr)
    assert len(settings["similarity_model"]["sha256"]) == len(settings["asr"]["sha256"]["model.safetensors"]) == 64
    assert scores["own"]["runaways"] == 100 and "similarity own encoder" in scores["own"], "own figures stay, under their own names"
    (folder,) = (out / "clips").iterdir()
    assert {path.name for path in folder.iterdir()} == {"one.wav", "two.wav"}, "the names that the public scripts take"
    assert all(find_synthetic_mark(path) for path in folder.iterdir())
    rates = [float(line.split("\t")[1]) for line in (out / "scores" / f"{folder.name}.wer").read_text().splitlines()[:-1]]
    assert scores["wer_percent"] == round(float(np.mean(rates)) * 100, 3)
    assert "SIM 0." in capsys.readouterr().out and "three: its prompt" in (out / "seed-tts-eval.md").read_text()


def test_chinese_clips_are_scored_with_transcripts_of_another_recognizer(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "one|一。|p0.wav|你好，世界。"
    words = command(line, "two|一。|p1.wav|再见。", language="zh")
    assert verbs.main(words) == 2
    assert "paraformer-zh of the package funasr" in capsys.readouterr().err
    assert verbs.main([*words, "--protocol-transcripts", str(tmp_path / "t.txt")]) == 2
    assert "has no clips; speak first" in capsys.readouterr().err
    assert verbs.main([*words, "--protocol-asr", "none"]) == 0
    (tmp_path / "t.txt").write_text("one|你好世\n", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "clips").rglob("*.wav")}
    assert verbs.main([*words, "--protocol-transcripts", str(tmp_path / "t.txt")]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing is spoken again"
    (scores,) = json.loads((tmp_path / "out" / "seed-tts-eval.json").read_text())["systems"].values()
    assert scores["wer_percent"] == 25.0 and list(scores["missing"]) == ["two"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seen", "x.jsonl"], "--seen has no effect with --protocol seed-tts-eval"),
        (["--protocol-asr", "none", "--protocol-similarity", "gone.pth"], "--protocol-similarity gone.pth: no such file"),
        (["--protocol-asr", "gone"], "--protocol-asr gone: no such folder"),
        (["--protocol-asr", "none", "--dnsmos"], "--dnsmos: the networks are not installed; run: pip install"),
        (["--protocol-asr", "none", "--limit", "0"], "--limit 0: must be at least 1"),
        (["--protocol-transcripts", "gone.txt", "--base", "NANO"], "--protocol-transcripts: transcripts are of one model"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    command: Command, nano: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnsmos, "NAME", "no-such-package")
    assert verbs.main([*command(*LINES), *[str(nano) if word == "NANO" else word for word in more]]) == 2
    assert message in capsys.readouterr().err


def test_a_base_speaks_as_the_model_does(nano: Path, fresh: Any, export: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name if the model cannot clone; it clones if the model does."""
    voice, before = (export(fresh, "custom_voice", tmp_path / name / "me") for name in ("new", "old"))
    words = ["--data", "meta.lst", "--protocol", "seed-tts-eval", "--base", str(before)]
    named = seed_tts_protocol.find_speaking_systems(SPEECH, voice, parse([*words, "--speaker", "Anna"]))
    assert [(one.name, one.way) for one in named] == [("me", "named"), ("me before training", "named")]
    assert f"--base {before} speaks by the names of the rows' speakers.\n" in capsys.readouterr().out
    with pytest.raises(UserError, match=f"--base {before}: this model cannot clone a clip"):
        seed_tts_protocol.find_speaking_systems(SPEECH, nano, parse([*words, "--speaker", "Anna"]))
    with pytest.raises(UserError, match="speaks by the names of its speakers, and cannot clone the prompts; give --speaker NAME"):
        seed_tts_protocol.find_speaking_systems(SPEECH, voice, parse(words))


def test_options_of_a_protocol_need_it(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in command(*LINES) if word not in ("--protocol", "seed-tts-eval", "--protocol-language", "en")]
    assert verbs.main([*words, "--dnsmos"]) == 2
    assert "--dnsmos is an option of a protocol; add --protocol seed-tts-eval" in capsys.readouterr().err


def test_speech_without_sound_has_an_error_rate_and_no_similarity(tmp_path: Path) -> None:
    (tmp_path / "meta.lst").write_text("a|p|p.wav|Two words.\nb|p|p.wav|Two words.\nc|p|none.wav|Two words.\nd|p|p.wav|More.\n")
    stand_ins.write_wave(tmp_path / "p.wav", {"seed": 1, "samples": 100, "rate": 16_000, "channels": 1})
    for name, samples in (("a", 100), ("b", 0), ("c", 100)):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(samples), 24_000)

    def fail(clip: Path, prompt: Path) -> float:
        raise RuntimeError("the kernel is larger than the input\nmore")

    prompts = read_prompts(tmp_path / "meta.lst", "en")
    scores = seed_tts_protocol.score_clips(prompts, tmp_path, "en", lambda path: "two words", fail)
    assert {name: one.rate for name, one in scores.errors.items()} == {"a": 0.0, "b": 1.0, "c": 0.0}
    assert scores.missing == {
        "a": "similarity: the kernel is larger than the input",
        "b": "similarity: the speech is empty",
        "c": f"similarity: its prompt {tmp_path / 'none.wav'}",
        "d": f"its speech {tmp_path / 'd.wav'}",
    }
    assert seed_tts_protocol.score_clips(prompts[:1], tmp_path, "en", None, lambda *_: 0.5).similarities == {"a": 0.5}


@pytest.mark.parametrize(("content", "message"), [(b"one two\n", "t.txt:1: not name|transcript"), (b"\xff", "cannot be read")])
def test_other_transcript_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match=message.replace("|", r"\|")):
        seed_tts_protocol.read_transcripts(tmp_path / "t.txt")
