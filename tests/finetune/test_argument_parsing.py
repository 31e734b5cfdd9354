"""A mistyped flag, folder or verb is answered with the nearest one, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overtone.data_prep.__main__ import main as prepare
from overtone.finetune.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["check", "runs/voise"], "runs/voise: no such folder; did you mean runs/voice?"),
        (["check", "run/voice"], "run/voice: no such folder; did you mean runs?"),
        (["check", "other"], "other: no such folder; give the folder of a run"),
        (["export", "runs/voise/checkpoints", "--to", "x"], "runs/voise/checkpoints: no such folder; did you mean runs/voice?"),
        (["export", "runs/voice", "--too", "x"], "unknown flag --too; did you mean --to?"),
        (["export", "runs/voice", "--to=x", "--adapteronly"], "unknown flag --adapteronly; did you mean --adapter-only?"),
        (["check", "runs/voice", "--xyz"], "unknown flag --xyz; the flags are --help"),
        (["exprot", "runs/voice"], "unknown verb 'exprot'; did you mean export?"),
        (["export", "runs/voice"], "--to is missing; name the new folder of the export, as in --to exports/voice"),
        (["export", "."], "--to is missing; name the new folder of the export, as in --to exports/test_"),
        (["export", "runs/voice/checkpoints/.."], "--to is missing; name the new folder of the export, as in --to exports/voice"),
        (["export", "runs/voise", "--push-to-hub", "me/x"], "runs/voise: no such folder; did you mean runs/voice?"),
        (["cp", "voice_clon"], "unknown name 'voice_clon'; did you mean voice_clone?"),
        (["cp", "--too"], "unknown flag --too; the flags are --help"),
        (["cp"], "the following arguments are required: NAME; `overtone cp --help`"),
        (["frobnicate"], "unknown verb 'frobnicate'; verbs are plan, train, "),
        (["merge", "runs/me"], "unknown verb 'merge'; this is export: "),
        (["eval"], "unknown verb 'eval'; this is eval-voice for a voice"),
        (["push"], "unknown verb 'push'; this is export: `overtone export EXPORTED_FOLDER --push-to-hub NAME`"),
        (["resume"], "unknown verb 'resume'; this is train: the command that started the run resumes it"),
        (["voice"], "unknown verb 'voice'; this is `overtone voice`"),
        (["check", "my data"], "my data: a dataset, not a run; datasets are read by: overtone check-dataset 'my data'"),
        (
            ["export", "my data/train.jsonl", "--to", "x"],
            "my data/train.jsonl: a dataset, not a run; datasets are read by: overtone export-dat",
        ),
        (["check", "runs/voice"], "runs/voice contains no checkpoint; give the folder of a run"),
    ],
)
def test_the_nearest_word_is_named(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "voice" / "checkpoints").mkdir(parents=True)
    (tmp_path / "my data").mkdir()
    for folder in ("runs/voice", "my data"):
        (tmp_path / folder / "train.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ray-serve", "--replica", "2"], "unknown flag --replica; did you mean --replicas?"),
        (["serve", "--zzz", "2"], "unknown flag --zzz; the flags are --model, --recipe, --strength, --host, --port"),
        (["serve", "--strenght", "2"], "unknown flag --strenght; did you mean --strength?"),
        (["chat", "--recip", "a"], "unknown flag --recip; did you mean --recipe?"),
        (["generate", "--promt", "a"], "unknown flag --promt; did you mean --prompt?"),
    ],
)
def test_flags_of_the_verb_are_suggested_beside_those_of_the_recipe(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argv[0], "--model", str(tmp_path), "--recipe", "llm_sft", *argv[1:]]) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["vioce"], "unknown verb 'vioce'; did you mean voice?"),
        (["transcribe"], "unknown verb 'transcribe'; this is voice"),
        (["train"], "unknown verb 'train'; this is `overtone train`"),
        (["--verbose"], "unknown verb '--verbose'; verbs are voice, codes"),
        (["voice", "talks", "--out", "x", "--wisper", "small"], "unknown flag --wisper; did you mean --whisper?"),
        (["voice", "talks", "--out", "x", "--transcripts", "--preset", "cleen"], "--preset cleen: no such choice; did you mean clean?"),
        (["export", "x", "--as", "wav", "--to", "y"], "--as wav: no such choice; choices are ljspeech, audiofolder, qwen, voice"),
        (["text", "a"], "the following arguments are required: --out; `overtone text --help`"),
    ],
)
def test_data_prep_names_the_nearest_word_too(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(argv) == 2
    printed = capsys.readouterr().err
    assert f"error: {message}" in printed and "usage:" not in printed


def test_an_abbreviated_flag_is_refused_with_the_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none"), "--forma", "base", "--to", "x"]) == 2
    assert "unknown flag --forma; did you mean --format?" in capsys.readouterr().err


def test_mistakes_are_found_without_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from overtone.finetune.__main__ import main\n"
        "assert main(['export', 'nothing', '--to', 'x']) == main(['check', 'nothing']) == main(['exprot']) == 2\n"
        "assert main(['--version']) == main(['schema']) == main(['generate', '--recipe', 'llm_sft', '--help']) == 0\n"
        "assert main(['generate', '--help']) == main(['chat', '--help']) == 0\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--prompt-file" in done.stdout and "--streamed-text" in done.stdout, "the options of both recipes"
