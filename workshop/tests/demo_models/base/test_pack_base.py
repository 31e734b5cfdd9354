"""The shipped base is the trained model without the codec, which ships once, and with its card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from overtone.data_prep.audio_codecs.qwen3_tts_codec import find_codec
from overtone.finetune import train
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.recipes.qwen3_tts.exporting import export_plan
from overtone.recipes.qwen3_tts.model.sampling_settings import SCHEME
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.launch.launching import voice_rows
from workshop.demo_models import recognizers
from workshop.demo_models.base import pack_base, prepare_base_training
from workshop.demo_models.corpus import make_corpus

FIGURES = {
    "steps": 900,
    "texts": 48,
    "wrong_words": {
        "whisper-demo-en": {"original": 1.0, "codec": 4.0, "cloned": 12.5},
        "pocketsphinx": {"original": 21.0, "codec": 24.0, "cloned": 32.5},
    },
    "by_voice": {"slt": 10.0, "awb": 15.0},
    "runaways": 1,
}


def test_a_packed_base_is_unpacked_with_its_codec_and_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tiny_checkpoint.build(tmp_path / "made", "nano")
    weights, codec = load_file(made / "model.safetensors"), (made / "speech_tokenizer" / "model.safetensors").read_bytes()
    other = tmp_path / "codec"
    (other / "speech_tokenizer").mkdir(parents=True)
    for path in (made / "speech_tokenizer").iterdir():
        (other / "speech_tokenizer" / path.name).write_bytes(path.read_bytes())
    (other / demo_models.CARD).write_text("# codec-demo\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "codec-demo.zip").write_bytes(demo_models.pack(other))
    (tmp_path / "models" / f"{pack_base.NAME}.zip").write_bytes(pack_base.pack_archive(made, FIGURES))
    assert not (made / "speech_tokenizer").exists()
    found = demo_models.folder_of(pack_base.NAME)
    assert (found / "speech_tokenizer" / "model.safetensors").read_bytes() == codec
    assert load_file(found / "model.safetensors").keys() == weights.keys()
    card = (found / demo_models.CARD).read_text()
    assert "A demo model" in card[:60] and "| 12.5 | 32.5 |" in card and "slt 10.0 %" in card and "{" not in card


@pytest.mark.slow
def test_the_wer_of_an_untrained_base_is_high(noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with the shipped Whisper and the shipped codec."""
    monkeypatch.setattr(pack_base, "MAX_SECONDS", 1.0)
    base = prepare_base_training.write_checkpoint(tmp_path / "base" / "start", find_codec("codec-demo"), seed=0)
    figures = pack_base.measure(base, noise_corpus, 1, recognizers.load_recognizers(pack_base.RECOGNIZERS))
    assert figures["texts"] == 6 and set(figures["by_voice"]) == {item.speaker for item in pack_base.select_held_out(noise_corpus, 1)}
    rates = [rate for rates in figures["wrong_words"].values() for rate in rates.values()]
    assert len(rates) == 6 and min(rates) > 50, "neither noise nor the speech of random weights has words"
    assert len(list((tmp_path / "base" / "said").iterdir())) == 6


@pytest.mark.slow
def test_the_exported_base_has_the_shipped_codec_and_no_speaker_names(tmp_path: Path) -> None:
    voice_rows(tmp_path, ["ann"])
    given = {"model.source": tiny_checkpoint.build(tmp_path / "nano"), "data.train": tmp_path / "train.jsonl", "run.dir": tmp_path / "run"}
    arguments = [str(word) for key, value in given.items() for word in (f"--{key}", value)]
    assert train.main(["--recipe", "voice_clone", "--config", "recipes/voice_clone/debug.yaml", *arguments, "--train.steps", "1"]) == 0
    made = pack_base.export_base(tmp_path / "run", tmp_path / "made")
    again = pack_base.export_base(tmp_path / "run", tmp_path / "made")
    config = json.loads((made / "config.json").read_text())
    assert again == made and config["tts_model_type"] == "base"
    assert config["talker_config"]["spk_id"] == config["talker_config"]["spk_is_dialect"] == {}
    assert not (made / export_plan.VOICES).exists()
    assert SCHEME.read_model_settings(made) == pack_base.GENERATION_CONFIG
    shipped_codec = find_codec("codec-demo") / "model.safetensors"
    assert (made / "speech_tokenizer" / "model.safetensors").read_bytes() == shipped_codec.read_bytes()
    assert load_file(made / "model.safetensors")["talker.model.codec_embedding.weight"].dtype == torch.bfloat16


def test_each_held_out_sentence_has_another_clip_of_its_voice_as_reference(noise_corpus: Path) -> None:
    items = pack_base.select_held_out(noise_corpus, 1)
    assert len(items) == 6 and "rms" not in {item.speaker for item in items}
    rows = [{**row, "split": "held_out"} for row in make_corpus.read_corpus(noise_corpus) if row["split"] == "train"]
    (noise_corpus / "more").mkdir(exist_ok=True)
    (noise_corpus / "more" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = pack_base.select_held_out(noise_corpus / "more", 2)
    assert len(pairs) == 12
    assert all(item.reference != item.recording and item.reference.name.split("-")[0] == item.speaker for item in pairs if item.reference)


def test_packing_requires_the_demo_whisper_and_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    with pytest.raises(UserError, match=r"whisper-demo-en\.zip is missing in .*; pack it first"):
        pack_base.main([str(tmp_path / "run")])
