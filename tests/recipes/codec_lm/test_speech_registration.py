"""Tests of `overtone.recipes.codec_lm.speech_registration`."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.recipe import RECIPE
from overtone.recipes.codec_lm.speech_registration import COMMAND
from tests.recipes.codec_lm import tiny_models

ROW = tiny_models.make_rows()[0]


@pytest.mark.parametrize("options", [(), ("--stream",), ("--unconstrained",)])
def test_a_text_is_spoken_into_a_file(options: tuple[str, ...], exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("snac")
    out = tmp_path / "hello.wav"
    words = ["--text", ROW["text"], "--speaker", ROW["speaker"], "--greedy", "--out", str(out), *options]
    assert RECIPE.inference.generate(exported, words) == 0
    wave, rate = soundfile.read(out)
    assert rate == 24000 and len(wave) == 64 * len(ROW["audio_codes"])
    assert "ann, language english" in capsys.readouterr().out


def test_a_file_of_texts_is_spoken_into_a_folder(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("snac")
    (tmp_path / "lines.txt").write_text("She counted the boats.\nIt is never late, is it?\n")
    words = ["--text-file", str(tmp_path / "lines.txt"), "--speaker", "bob", "--greedy", "--out", str(tmp_path / "wavs")]
    assert COMMAND.run(exported, words) == 0
    assert sorted(path.name for path in (tmp_path / "wavs").iterdir()) == ["00001.wav", "00002.wav", "manifest.jsonl"]


def test_options_become_settings() -> None:
    args = COMMAND.parse(["--text", "a", "--unconstrained", "--top-p", "0.5"])
    assert (args.constrained, args.top_p, COMMAND.parse(["--text", "a"]).constrained) == (False, 0.5, True)
    with pytest.raises(UserError, match="--top-p 2 is out of range"):
        COMMAND.parse(["--text", "a", "--top-p", "2"])


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_worker_speaks_as_one_process(exported: Path, tmp_path: Path) -> None:
    for package in ("ray", "snac"):
        pytest.importorskip(package)
    from tests.launch import ray_generation, ray_nodes

    with ray_nodes.cluster(2) as nodes:
        ray_generation.check_speech(nodes, tmp_path, exported, "codec_lm", "--max-seconds", "2", "--speaker", "ann")
        ray_generation.check_evaluation(nodes, tmp_path, exported, "codec_lm", "ann")
