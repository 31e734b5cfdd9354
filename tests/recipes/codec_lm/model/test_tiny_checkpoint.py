"""The tiny checkpoint: a model and a codec that the recipe trains and speaks with, the same bytes for the same seed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from overtone.data_prep.audio_codecs.interface import read_code_format
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.finetune.config_sources import load_yaml
from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.inference.exported_folder import ExportedSpeechTokens
from overtone.recipes.codec_lm.model import tiny_checkpoint
from overtone.recipes.codec_lm.model.dataset_speakers import expect_codec
from overtone.recipes.speech.run_codec import open_run_codec

ROOT = Path(tiny_checkpoint.__file__).parents[1]


def test_it_is_a_model_of_orpheus_with_its_codec(tmp_path: Path) -> None:
    pytest.importorskip("snac")
    folder = tiny_checkpoint.build(tmp_path / "tiny")
    made = ExportedSpeechTokens.inspect(folder)
    assert made.family == tiny_checkpoint.FAMILY and "tara" in made.languages
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(made.processor.tokenizer) and model.lm_head.weight is model.model.embed_tokens.weight
    codec = open_codec(str(folder))
    assert read_code_format(codec) == made.family.code_format == read_code_format(open_run_codec(None, folder, expect_codec(made.family)))
    sound = np.random.default_rng(0).standard_normal(2048 * 4).astype(np.float32)
    loaded = codec.load("cpu")
    (codes,) = loaded.encode([sound])
    assert codes.shape == (4, 7) and len(np.unique(codes)) > 4 and loaded.decode(codes).shape == sound.shape


def test_the_same_seed_gives_the_same_bytes_in_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("snac")
    assert tiny_checkpoint.main([str(tmp_path / "one")]) == 0 and "random weights" in capsys.readouterr().out
    one, again, other = tmp_path / "one", tiny_checkpoint.build(tmp_path / "again"), tiny_checkpoint.build(tmp_path / "other", seed=1)
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    changed = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    assert all((one / name).read_bytes() == (again / name).read_bytes() for name in names)
    assert changed == ["model.safetensors", "speech_codec/model.safetensors"]
    with pytest.raises(UserError, match="one exists already"):
        tiny_checkpoint.build(one)


def test_without_the_package_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snac", None)
    with pytest.raises(UserError, match=r"'snac' is missing; install the snac extra: pip install 'overtone\[snac\]'"):
        tiny_checkpoint.build(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_the_overlay_trains_the_folder_that_its_comment_makes() -> None:
    text = (ROOT / "debug.yaml").read_text()
    source = load_yaml(text, "debug.yaml")["model"]["source"]
    assert f"python -m overtone.recipes.codec_lm.model.tiny_checkpoint {source}\n" in text and f"codes data/me --model {source}\n" in text
