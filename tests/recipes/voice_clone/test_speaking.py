"""The verb `generate`: it writes what the model says, and refuses clearly what the model cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from finetune.errors import UserError
from recipes.voice_clone import stock
from recipes.voice_clone.recipe import RECIPE

ROOT = Path(__file__).resolve().parents[3]
HELLO = ["--text", "She counted the boats.", "--max-seconds", "2"]


def test_greedy_speech_is_the_learned_clip(two_voices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command line, the wav is the decoded codes of the clip; the language is the one the speaker was trained with."""
    row = two_voices.rows[2]
    assert (row["speaker"], row["text"], row["language"]) == ("Bert", HELLO[1], "english")
    codec = stock.load(two_voices.custom_voice).model.speech_tokenizer
    waves, _ = codec.decode([{"audio_codes": torch.tensor(row["audio_codes"])}])
    for kind in RECIPE.formats:
        out = tmp_path / kind / "hello.wav"
        assert RECIPE.generate(getattr(two_voices, kind), [*HELLO, "--speaker", "BERT", "--greedy", "--out", str(out)]) == 0
        wave, rate = soundfile.read(out, dtype="float32")
        assert rate == 24000 and wave == pytest.approx(waves[0].clip(-1, 1), abs=1e-4) and wave.std() > 0.05
        seconds = len(row["audio_codes"]) / 12.5
        assert capsys.readouterr().out == f"{out}: {seconds:.2f} s, bert, language english\n"


def test_seed_decides_the_sampling(fresh: Any, export: Any, tmp_path: Path) -> None:
    untrained = export(fresh, "custom_voice", tmp_path / "untrained")

    def said(*more: str) -> bytes:
        RECIPE.generate(untrained, ["--text", "New.", "--speaker", "bert", "--max-seconds", "1", "--out", str(tmp_path / "a.wav"), *more])
        return (tmp_path / "a.wav").read_bytes()

    assert said("--seed", "1") == said("--seed", "1") != said("--seed", "2")


def test_cut_off_is_told(one_voice: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "a.wav")
    RECIPE.generate(one_voice.custom_voice, ["--text", "It is never late!", "--greedy", "--max-seconds", "0.4", "--out", out])
    assert "it was cut off at --max-seconds 0.4" in capsys.readouterr().out


@pytest.mark.parametrize("text", [[], ["--reference-text", "The boats."]])
def test_base_export_clones_from_a_reference_clip(text: list[str], two_voices: Any, tmp_path: Path) -> None:
    clip = two_voices.ready.config.data.train.parent / "low.flac"
    out = tmp_path / "clone.wav"
    argv = ["--text", "Never late.", "--max-seconds", "1", "--reference", str(clip), *text, "--out", str(out)]
    assert RECIPE.generate(two_voices.base, argv) == 0
    assert 0 < soundfile.info(out).duration <= 1


@pytest.mark.parametrize(
    ("kind", "argv", "message"),
    [
        ("custom_voice", ["--text", " "], "--text is empty"),
        ("custom_voice", ["--text", "Hi."], "--speaker is missing.*anna, bert"),
        ("custom_voice", ["--text", "Hi.", "--speaker", "carl"], "does not know that voice; it has anna, bert"),
        ("custom_voice", ["--text", "Hi.", "--speaker", "anna", "--language", "latin"], "language 'latin' is not known.*english"),
        ("custom_voice", ["--text", "Hi.", "--reference", "clip.wav"], "--format base"),
        ("base", ["--text", "Hi.", "--reference", "clip.wav", "--speaker", "anna"], "each choose a voice"),
        ("base", ["--text", "Hi.", "--reference", "clip.wav"], "--reference clip.wav: no such file"),
    ],
)
def test_refusals(kind: str, argv: list[str], message: str, two_voices: Any, tmp_path: Path) -> None:
    out = tmp_path / "never.wav"
    with pytest.raises(UserError, match=message):
        RECIPE.generate(getattr(two_voices, kind), [*argv, "--out", str(out)])
    assert not out.exists()


def test_base_without_voices_wants_a_reference(nano: Path) -> None:
    with pytest.raises(UserError, match=r"knows no speaker by name; give --reference"):
        RECIPE.generate(nano, ["--text", "Hi."])


def test_help_imports_no_torch() -> None:
    code = "import sys; from recipes.voice_clone.speaking import parse\ntry: parse(['--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--max-seconds" in done.stdout
