"""`overtone generate` with Qwen3-TTS: writes the model's speech, and refuses invalid requests with a clear message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from overtone.finetune.errors import UserError
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, read_synthetic_mark
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.speech.marked_audio_encoding import wav_header
from overtone.recipes.voice_clone.recipe import RECIPE

ROOT = Path(__file__).resolve().parents[3]
HELLO = ["--text", "She counted the boats.", "--max-seconds", "2"]


def test_greedy_speech_reproduces_the_memorized_clip(two_voices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line: the wav is the decoded codes of the clip, and the language is the one that the speaker was trained in."""
    row = two_voices.rows[2]
    assert (row["speaker"], row["text"], row["language"]) == ("Bert", HELLO[1], "english")
    codec = stock_qwen_tts.load(two_voices.custom_voice).model.speech_tokenizer
    waves, _ = codec.decode([{"audio_codes": torch.tensor(row["audio_codes"])}])
    for kind in RECIPE.formats:
        out = tmp_path / kind / "hello.wav"
        assert RECIPE.inference.generate(getattr(two_voices, kind), [*HELLO, "--speaker", "BERT", "--greedy", "--out", str(out)]) == 0
        wave, rate = soundfile.read(out, dtype="float32")
        assert rate == 24000 and wave == pytest.approx(waves[0].clip(-1, 1), abs=1e-4) and wave.std() > 0.05
        seconds = len(row["audio_codes"]) / 12.5
        assert capsys.readouterr().out == f"{out}: {seconds:.2f} s, bert, language english\n"


def test_the_seed_determines_the_sampled_speech(fresh: Any, export: Any, tmp_path: Path) -> None:
    untrained = export(fresh, "custom_voice", tmp_path / "untrained")

    def speak(*more: str) -> bytes:
        RECIPE.inference.generate(
            untrained, ["--text", "New.", "--speaker", "bert", "--max-seconds", "1", "--out", str(tmp_path / "a.wav"), *more]
        )
        return (tmp_path / "a.wav").read_bytes()

    assert speak("--seed", "1") == speak("--seed", "1") != speak("--seed", "2")


def test_cut_off_speech_is_reported(one_voice: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "a.wav")
    RECIPE.inference.generate(one_voice.custom_voice, ["--text", "It is never late!", "--greedy", "--max-seconds", "0.4", "--out", out])
    assert "the speech was cut off at --max-seconds 0.4" in capsys.readouterr().out


@pytest.mark.parametrize("text", [[], ["--reference-text", "The boats."]])
def test_base_export_clones_from_a_reference_clip(text: list[str], two_voices: Any, tmp_path: Path) -> None:
    clip = two_voices.ready.config.data.train.parent / "low.flac"
    out = tmp_path / "clone.wav"
    argv = ["--text", "Never late.", "--max-seconds", "1", "--reference", str(clip), *text, "--out", str(out)]
    assert RECIPE.inference.generate(two_voices.base, argv) == 0
    assert 0 < soundfile.info(out).duration <= 1


@pytest.mark.parametrize(
    ("kind", "argv", "message"),
    [
        ("custom_voice", ["--text", " "], "has nothing to speak"),
        ("custom_voice", ["--text", "Hi."], "--speaker is missing.*anna, bert"),
        ("custom_voice", ["--text", "Hi.", "--speaker", "carl"], "does not have this speaker; it has anna, bert"),
        ("custom_voice", ["--text", "Hi.", "--speaker", "anna", "--language", "latin"], "language 'latin' is not known.*english"),
        ("custom_voice", ["--text", "Hi.", "--reference", "clip.wav"], "--format base"),
        ("base", ["--text", "Hi.", "--reference", "clip.wav", "--speaker", "anna"], "each choose a voice"),
        ("base", ["--text", "Hi.", "--reference", "clip.wav"], "--reference clip.wav: no such file"),
    ],
)
def test_an_invalid_request_is_refused_and_writes_nothing(
    kind: str, argv: list[str], message: str, two_voices: Any, tmp_path: Path
) -> None:
    out = tmp_path / "never.wav"
    with pytest.raises(UserError, match=message):
        RECIPE.inference.generate(getattr(two_voices, kind), [*argv, "--out", str(out)])
    assert not out.exists()


def test_a_base_without_speakers_requires_a_reference(nano: Path) -> None:
    with pytest.raises(UserError, match=r"has no named speakers; give --reference"):
        RECIPE.inference.generate(nano, ["--text", "Hi."])


def test_a_text_file_gives_one_wav_per_line_and_a_second_run_skips_finished_lines(
    two_voices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For any batch size. A second run speaks only lines that are missing or have changed."""
    rows, out = two_voices.rows, tmp_path / "wavs"
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": row["text"], "speaker": row["speaker"]}) + "\n" for row in rows))
    argv = ["--text-file", str(file), "--out", str(out), "--greedy", "--max-seconds", "0.72", "--batch", "3"]

    def run(*more: str) -> str:
        assert RECIPE.inference.generate(two_voices.custom_voice, [*argv, *more]) == 0
        return capsys.readouterr().out

    output = run()
    assert f"{out}: 4 wavs, 2.8 s of speech; manifest.jsonl lists them" in output
    assert f"2 were cut off at --max-seconds 0.72 because the model did not end them: {file}:3, {file}:4" in output
    listed = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert [(row["line"], row["speaker"], row["ended"]) for row in listed] == [
        (1, "anna", True),
        (2, "anna", True),
        (3, "bert", False),
        (4, "bert", False),
    ]
    assert [row["seconds"] for row in listed] == [pytest.approx(soundfile.info(out / row["file"]).duration, abs=1e-3) for row in listed]

    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.wav")}
    assert len(before) == 4 and "4 wavs, 4 of them from an earlier run" in run()
    (out / "00002.wav").unlink()
    file.write_text(file.read_text().replace(rows[0]["text"], "Another one.", 1))
    assert "4 wavs, 2 of them from an earlier run" in run()
    again = {path.name for path in out.glob("*.wav") if path.stat().st_mtime_ns != before[path.name]}
    assert again == {"00001.wav", "00002.wav"}


def test_streaming_writes_the_same_audio(one_voice: Any, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """To a file, which has its true length at the end, and to stdout, where another program reads until the end."""
    argv = ["--text", "It is late!", "--seed", "4", "--max-seconds", "1.5"]
    for name, more in (("whole.wav", []), ("grown.wav", ["--stream"])):
        RECIPE.inference.generate(one_voice.custom_voice, [*argv, *more, "--out", str(tmp_path / name)])
    (whole, rate), (grown, _) = (soundfile.read(tmp_path / name, dtype="int16") for name in ("whole.wav", "grown.wav"))
    assert len(whole) == len(grown) > rate / 2 and abs(whole.astype(int) - grown).max() <= 4
    capfdbinary.readouterr()
    RECIPE.inference.generate(one_voice.custom_voice, [*argv, "--stream", "--out", "-"])
    audio, summary = capfdbinary.readouterr()
    mark = read_synthetic_mark(tmp_path / "grown.wav")
    assert mark == SyntheticMark("custom_voice") and mark == read_synthetic_mark(tmp_path / "whole.wav")
    assert audio[:4] == b"RIFF" and len(audio) == len(wav_header(rate, mark=mark)) + 2 * len(whole)
    assert f"-: {len(whole) / rate:.2f} s, anna" in summary.decode()


def test_help_imports_no_torch() -> None:
    parse = "import sys; from overtone.recipes.voice_clone.speech_registration import COMMAND\ntry: COMMAND.parse(['--help'])"
    code = f"{parse}\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--max-seconds" in done.stdout


@pytest.mark.ci
@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_worker_speaks_as_one_process(fresh: Any, export: Any, tmp_path: Path) -> None:
    """`generate` and `eval-voice`, by a real cluster of two workers."""
    pytest.importorskip("ray")
    from tests.launch import ray_generation, ray_nodes

    model = export(fresh, "custom_voice", tmp_path / "untrained")
    with ray_nodes.cluster(2) as nodes:
        ray_generation.check_speech(nodes, tmp_path, model, "voice_clone", "--speaker", "bert", "--max-seconds", "2")
        ray_generation.check_evaluation(nodes, tmp_path, model, "voice_clone", "bert")
