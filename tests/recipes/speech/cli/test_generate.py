"""`overtone generate` of any speech recipe: one text, files of texts, streams; a recipe adds its options."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
from overtone.recipes.speech.cli.generate import GenerateCommand
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.marked_audio_encoding import wav_header
from overtone.recipes.speech.sampling_settings import SamplingScheme
from tests.recipes.voice_clone.tones import RATE, TONES, ToneFolder, tone_folder

ROOT = Path(__file__).resolve().parents[4]


@dataclass(frozen=True)
class Request(SpeechRequest):
    shout: bool = False


@dataclass(frozen=True)
class Sampling(SpeechSampling):
    top_p: float | None = None


COMMAND = GenerateCommand(
    speech=TONES,
    scheme=SamplingScheme({"temperature": 1.0, "top_p": 1.0}, {}, {"temperature": "how bold", "top_p": "how many"}),
    Request=Request,
    Sampling=Sampling,
    help={"--reference": "a clip with a pitch"},
    add_options=lambda group: group.add_argument("--shout", action="store_true", help="louder"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tone_folder(tmp_path / "tones")


def test_one_text_is_written_and_summarized(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "hello.wav"
    assert COMMAND.run(folder, ["--text", "Never late.", "--speaker", "low", "--out", str(out)]) == 0
    wave, rate = soundfile.read(out)
    assert rate == RATE and len(wave) == 11 * RATE / 20 and wave.std() > 0.1
    assert capsys.readouterr().out == f"{out}: 0.55 s, low\n"
    assert COMMAND.run(folder, ["--text", "Never late.", "--speaker", "low", "--max-seconds", "0.5", "--out", str(out)]) == 0
    assert soundfile.info(out).duration == 0.5 and "cut off at --max-seconds 0.5: the model did not end it" in capsys.readouterr().out


def test_recordings_and_speech_of_other_models_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    recording, wavs = tmp_path / "mine.wav", tmp_path / "wavs"
    recording.write_bytes(b"RIFF, a recording")
    with pytest.raises(UserError, match="mine.wav exists and was not generated here, so it would be lost"):
        COMMAND.run(folder, ["--text", "Never late.", "--speaker", "low", "--out", str(recording)])
    assert recording.read_bytes() == b"RIFF, a recording"
    (tmp_path / "lines.txt").write_text("Never late.\n")
    argv = ["--text-file", str(tmp_path / "lines.txt"), "--speaker", "low", "--out", str(wavs)]
    assert COMMAND.run(folder, argv) == 0
    before = {path: path.read_bytes() for path in wavs.iterdir()}
    (other := tmp_path / "other").mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match=f"is speech of {folder.name}, not of other; choose another folder"):
        COMMAND.run(other, [*argv, "--seed", "3"])
    assert {path: path.read_bytes() for path in wavs.iterdir()} == before


def test_a_text_comes_from_standard_input(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--speaker", "low", "--out"]
    assert COMMAND.run(folder, ["--text", "Never late.", *argv, str(tmp_path / "a.wav")]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("Never late.\n"))
    assert COMMAND.run(folder, ["--text", "-", *argv, str(tmp_path / "b.wav")]) == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_a_stream_has_the_same_audio(folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """To a file, which has its true length at the end, and to stdout, where another program reads until the end."""
    argv = ["--text", "Late.", "--speaker", "high"]
    for name, more in (("whole.wav", []), ("grown.wav", ["--stream"])):
        COMMAND.run(folder, [*argv, *more, "--out", str(tmp_path / name)])
    assert (tmp_path / "whole.wav").read_bytes() == (tmp_path / "grown.wav").read_bytes()
    capfdbinary.readouterr()
    COMMAND.run(folder, [*argv, "--stream", "--out", "-"])
    audio, summary = capfdbinary.readouterr()
    sizes = [len(wav_header(RATE, count, SyntheticMark(folder.name))) for count in (None, 1)]
    assert audio[:4] == b"RIFF" and audio[sizes[0] :] == (tmp_path / "whole.wav").read_bytes()[sizes[1] :]
    assert b"-: 0.25 s, high" in summary


STORY = "The morning train is never late. " * 18
"""About 40 s: three passages."""


def test_a_long_text_is_spoken_in_passages_everywhere_the_same(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("whole.wav", []), ("grown.wav", ["--stream"])):
        assert COMMAND.run(folder, ["--text", STORY, "--speaker", "low", *more, "--out", str(tmp_path / name)]) == 0
        assert "low, spoken in 3 passages" in capsys.readouterr().out
    wave, _ = soundfile.read(tmp_path / "whole.wav")
    assert len(wave) == len(STORY.strip()) * RATE // 20 - 2 * RATE // 20 + 2 * round(0.3 * RATE), "two spaces became pauses"
    (tmp_path / "lines.txt").write_text(f"Hi. 😊\n{STORY}\nOne *two*.\n")
    argv = ["--text-file", str(tmp_path / "lines.txt"), "--speaker", "low", "--batch", "2", "--out", str(tmp_path / "wavs")]
    assert COMMAND.run(folder, argv) == 0
    assert "not spoken: 1 emoji, 1 markup from 2 texts" in capsys.readouterr().out
    assert np.array_equal(soundfile.read(tmp_path / "wavs" / "00002.wav")[0], wave)
    assert (tmp_path / "whole.wav").read_bytes() == (tmp_path / "grown.wav").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "wavs" / "manifest.jsonl").read_text().split("\n")[:-1]]
    assert [row["text"][:10] for row in rows] == ["Hi.", "The mornin", "One two."]


def test_a_text_without_words_is_refused_before_the_model_is_loaded(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--text has nothing to speak"):
        COMMAND.run(folder, ["--text", "…😊", "--speaker", "low", "--out", str(tmp_path / "a.wav")])
    (tmp_path / "lines.txt").write_text("Hi.\n—\n")
    with pytest.raises(UserError, match="lines.txt:2: the line has nothing to speak"):
        COMMAND.run(folder, ["--text-file", str(tmp_path / "lines.txt"), "--speaker", "low", "--out", str(tmp_path / "wavs")])


def test_a_text_file_gives_one_wav_per_line_and_a_second_run_skips_finished_lines(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batches: list[list[str]] = []
    speak: Any = ToneFolder.open(ToneFolder.inspect(folder)).__class__.speak
    monkeypatch.setattr(
        "tests.recipes.voice_clone.tones.Tones.speak",
        lambda self, requests, sampling: batches.append([one.text for one in requests]) or speak(self, requests, sampling),
    )
    file, out = tmp_path / "lines.jsonl", tmp_path / "wavs"
    rows = [{"text": text, "speaker": "high" if text == "Hi." else None} for text in ("One two.", "Hi.", "Another one.")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["--text-file", str(file), "--out", str(out), "--speaker", "low", "--batch", "2"]
    assert COMMAND.run(folder, argv) == 0
    assert batches == [["Another one.", "One two."], ["Hi."]], "the longest first"
    assert f"{out}: 3 wavs, 1.1 s of speech; manifest.jsonl lists them" in capsys.readouterr().out
    listed = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [(row["line"], row["speaker"], row["seconds"]) for row in listed] == [(1, "low", 0.4), (2, "high", 0.15), (3, "low", 0.6)]
    assert [soundfile.info(out / row["file"]).duration for row in listed] == [0.4, 0.15, 0.6]

    (out / "00002.wav").unlink()
    file.write_text(file.read_text().replace("Another", "Other"))
    batches.clear()
    COMMAND.run(folder, argv)
    assert batches == [["Other one.", "Hi."]] and "3 wavs, 1 of them from an earlier run" in capsys.readouterr().out
    batches.clear()
    COMMAND.run(folder, [*argv, "--shout"])
    assert sum(map(len, batches)) == 3, "an option of the recipe makes another wav"


def test_a_text_file_is_checked_completely_before_anything_is_spoken(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"text": "Fine.", "speaker": "low"}\n{"text": "Bad.", "speaker": "carl"}\n{"text": "Bad.", "speaker": "zed"}\n')
    with pytest.raises(UserError, match=rf"{file}:2: speaker carl: there are low, high\n{file}:3: speaker zed"):
        COMMAND.run(folder, ["--text-file", str(file), "--out", str(tmp_path / "wavs")])
    assert not (tmp_path / "wavs").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--text-file", "f.txt", "--stream"], "--stream works on one text"),
        (["--text-file", "f.txt", "--out", "a.wav"], "writes a folder of wav files"),
        (["--text", "Hi.", "--speaker", "low", "--out", "."], "is a folder; --text writes one wav file"),
        (["--text", "Hi.", "--temperature", "0"], "--temperature 0 is out of range; --greedy"),
        (["--text", "Hi.", "--top-p", "1.5"], r"--top-p 1.5 is out of range$"),
        (["--text", "Hi.", "--max-seconds", "inf"], "--max-seconds inf is out of range"),
        (["--text", "Hi.", "--seed", "-1"], "--seed -1 is out of range"),
        (["--text-file", "f.txt", "--batch", "0"], "--batch 0 is out of range"),
    ],
)
def test_invalid_options_are_refused(argv: list[str], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        COMMAND.run(folder, argv)


def test_the_help_has_the_options_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        COMMAND.parse(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "a clip with a pitch",
        "--shout louder",
        "how many (default: from the model's generation_config.json, else 1.0)",
        "runs/tones",
    ):
        assert text in printed


def test_the_command_imports_no_torch() -> None:
    code = "import sys; import overtone.recipes.speech.cli.generate; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_requests_have_all_options(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(ToneFolder, "check", lambda _, request: seen.append(request))
    argv = ["--text", "Hi.", "--speaker", "low", "--language", "x", "--reference-text", "y", "--shout", "--out", str(tmp_path / "a.wav")]
    COMMAND.run(folder, argv)
    assert seen == [Request("Hi.", "low", "x", None, "y", shout=True)]
    assert np.isfinite(soundfile.read(tmp_path / "a.wav")[0]).all()
