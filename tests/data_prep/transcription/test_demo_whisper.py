"""The packaged demo Whisper: used only by its name, and named in everything that it writes."""

from __future__ import annotations

import json
import shutil
import zipfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import whisper

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio
from overtone.data_prep.cli import voice
from overtone.data_prep.transcription import demo_whisper, whisper_engine
from overtone.data_prep.transcription.demo_whisper import DemoWhisperDescription
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from workshop.demo_models.corpus.grammar import generate_sentences
from workshop.demo_models.corpus.voices import VOICES, speak

TEXT = "The night train to the north leaves from platform seven."
SCOPE = "demo: 3 words"


@pytest.fixture(scope="module")
def says_one_thing(whisper_that_says) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Weights of a model that always says `TEXT`, quite sure of it, and its dimensions."""
    kept = torch.load(whisper_that_says(TEXT), weights_only=True)
    return {name: tensor.half() for name, tensor in kept["model_state_dict"].items()}, kept["dims"]


@pytest.fixture
def pretends(says_one_thing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """(least_sure) → the package's model is that one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    demo_models._warn.cache_clear()  # another test of this process may have used the name
    demo_whisper._unpack_model.cache_clear()

    def build(least_sure: float) -> None:
        weights, dims = says_one_thing
        demo_whisper.write_model(
            tmp_path / "made",
            weights,
            DemoWhisperDescription(dims=dims, scope=SCOPE, least_sure=least_sure, longest_window=11.0, figures={}),
        )
        (tmp_path / "made" / demo_models.CARD).write_text("# a model that says one thing\n")
        (tmp_path / "models").mkdir()
        with zipfile.ZipFile(tmp_path / "models" / f"{demo_whisper.NAME}.zip", "w") as archive:  # `shipped.pack` takes seconds
            for path in (tmp_path / "made").iterdir():
                archive.write(path, path.name)

    return build


@pytest.fixture
def recordings(one_sentence: Audio, tmp_path: Path) -> Path:
    (tmp_path / "recordings").mkdir()
    soundfile.write(tmp_path / "recordings" / "talk.wav", one_sentence.samples, MASTER_RATE)
    return tmp_path / "recordings"


def prepare(recordings: Path, *more: str) -> tuple[int, Path]:
    out = recordings.parent / "out"
    argv = [str(recordings), "--out", str(out), "--whisper", demo_whisper.NAME, "--language", "en", "--workers", "0", *more]
    return voice.main(argv), out


def test_the_summary_and_every_row_name_the_demo_model(pretends, recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretends(least_sure=-0.4)
    code, out = prepare(recordings)
    assert code == 0
    assert f"warning: demo model {demo_whisper.NAME}: " in capsys.readouterr().err
    heard = json.loads((out / "summary.json").read_text())["settings"]["text"]
    assert (heard["name"], heard["scope"], heard["weights"]) == (demo_whisper.NAME, SCOPE, demo_whisper.digest_archive())
    (row,) = map(json.loads, (out / "train.jsonl").read_text().splitlines())
    assert row["asr"] == {"model": demo_whisper.NAME, "scope": SCOPE} and row["text"] == TEXT


def test_the_demo_model_has_its_own_confidence_limit(pretends, recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretends(least_sure=0.5)
    code, out = prepare(recordings)
    assert code == 2, "nothing is left to train on"
    (reject,) = map(json.loads, (out / "rejects.jsonl").read_text().splitlines())
    assert reject["reasons"] == ["unsure_text"] and reject["text"] == TEXT
    capsys.readouterr()
    assert prepare(recordings, "--dry-run")[0] == 0
    assert "low transcription confidence (from 0.5;" in capsys.readouterr().out


def test_the_checkpoint_is_unpacked_once_into_the_cache(pretends, tmp_path: Path) -> None:
    pretends(least_sure=-0.4)
    path = whisper_engine.fetch_weights(demo_whisper.NAME)
    assert path.parent == tmp_path / "cache" / "overtone"
    written = path.stat().st_mtime_ns
    assert path == demo_whisper.fetch_checkpoint() and path.stat().st_mtime_ns == written
    assert whisper.load_model(str(path), device="cpu").dims.n_audio_state == 64


def test_the_demo_model_is_used_only_by_its_full_name() -> None:
    assert demo_whisper.is_demo_name("whisper-demo-en")
    assert not any(map(demo_whisper.is_demo_name, ("", "tiny", "small.en", "demo", "whisper-demo")))
    with pytest.raises(UserError, match=r"--whisper whisper-demo: neither a file nor one of whisper-demo-en, "):
        whisper_engine.describe_settings("whisper-demo", None)


def test_an_installation_without_the_demo_model_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path / "none")
    with pytest.raises(UserError, match=r"--whisper whisper-demo-en: the demo models .* are not in this installation; .* Or use another"):
        whisper_engine.describe_settings(demo_whisper.NAME, None)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("flite"), reason="needs flite (Debian: apt-get install flite)")
def test_the_demo_model_transcribes_its_grammar_and_its_inventions_are_rejected(sample: Path, tmp_path: Path) -> None:
    """Sentences that were held out of its training, and the embedded sample's English, of which it knows nothing."""
    texts = list(islice(generate_sentences(5, "held_out"), 8))
    (tmp_path / "recordings").mkdir()
    slt = next(voice for voice in VOICES if voice.name == "slt")
    pause = np.zeros(int(0.8 * MASTER_RATE), np.float32)
    sound = np.concatenate([part for text in texts for part in (pause, speak(slt, text))] + [pause])
    room = np.random.default_rng(0).normal(0, 3e-4, len(sound)).astype(np.float32)
    soundfile.write(tmp_path / "recordings" / "known.wav", sound + room, MASTER_RATE)
    shutil.copy(sample / "slt" / "harbour.flac", tmp_path / "recordings" / "other.flac")
    code, out = prepare(tmp_path / "recordings")
    assert code == 0
    kept = [json.loads(line) for name in ("train.jsonl", "val.jsonl") for line in (out / name).read_text().splitlines()]
    rejected = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    known = sum(row["duration"] for row in kept if row["source"] == "known.wav")
    invented = sum(row["duration"] for row in kept if row["source"] == "other.flac")
    unsure = sum(one["end"] - one["start"] for one in rejected if one["source"] == "other.flac" and "unsure_text" in one["reasons"])
    assert known > 0.5 * len(sound) / MASTER_RATE
    assert unsure > 4 * invented, "of the other English, four fifths and more are rejected by the rule"
