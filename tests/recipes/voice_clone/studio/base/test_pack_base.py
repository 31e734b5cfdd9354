"""The shipped base is what the recipe trained, without the codec, which ships once; and it says what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from data_prep.audio_codecs.qwen3_tts import find_codec
from finetune import train
from finetune.errors import UserError
from finetune.storage import demo_models
from recipes.voice_clone.exporting import exported_files
from recipes.voice_clone.model import sampling_settings, tiny_checkpoint
from recipes.voice_clone.studio import judges
from recipes.voice_clone.studio.base import make_base, pack_base
from recipes.voice_clone.studio.corpus import make_corpus
from tests.launch.launching import voice_rows

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


def test_what_is_packed_comes_back_with_the_codec_and_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "HERE", tmp_path / "models")
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
    (tmp_path / "models" / f"{pack_base.NAME}.zip").write_bytes(pack_base.packed(made, FIGURES))
    assert not (made / "speech_tokenizer").exists()
    found = demo_models.folder_of(pack_base.NAME)
    assert (found / "speech_tokenizer" / "model.safetensors").read_bytes() == codec
    assert load_file(found / "model.safetensors").keys() == weights.keys()
    card = (found / demo_models.CARD).read_text()
    assert "A demo model" in card[:60] and "| 12.5 | 32.5 |" in card and "slt 10.0 %" in card and "{" not in card


@pytest.mark.slow
def test_what_an_untrained_base_says_is_measured_as_wrong(noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the shipped Whisper, through the shipped codec."""
    monkeypatch.setattr(pack_base, "LONGEST_S", 1.0)
    base = make_base.write_start(tmp_path / "base" / "start", find_codec("codec-demo"), seed=0)
    figures = pack_base.measure(base, noise_corpus, 1, judges.called(pack_base.JUDGES))
    assert figures["texts"] == 6 and set(figures["by_voice"]) == {item.speaker for item in pack_base.held_out(noise_corpus, 1)}
    rates = [rate for of_judge in figures["wrong_words"].values() for rate in of_judge.values()]
    assert len(rates) == 6 and min(rates) > 50, "noise, and what random weights say, are no words"
    assert len(list((tmp_path / "base" / "said").iterdir())) == 6


@pytest.mark.slow
def test_the_export_speaks_through_the_shipped_codec(tmp_path: Path) -> None:
    voice_rows(tmp_path, ["ann"])
    given = {"model.source": tiny_checkpoint.build(tmp_path / "nano"), "data.train": tmp_path / "train.jsonl", "run.dir": tmp_path / "run"}
    told = [str(word) for key, value in given.items() for word in (f"--{key}", value)]
    assert train.main(["--recipe", "voice_clone", "--config", "recipes/voice_clone/debug.yaml", *told, "--train.steps", "1"]) == 0
    made = pack_base.exported(tmp_path / "run", tmp_path / "made")
    again = pack_base.exported(tmp_path / "run", tmp_path / "made")
    config = json.loads((made / "config.json").read_text())
    assert again == made and config["tts_model_type"] == "base"
    assert config["talker_config"]["spk_id"] == config["talker_config"]["spk_is_dialect"] == {}
    assert not (made / exported_files.VOICES).exists()
    assert sampling_settings.own(made) == pack_base.SAMPLED
    shipped_codec = find_codec("codec-demo") / "model.safetensors"
    assert (made / "speech_tokenizer" / "model.safetensors").read_bytes() == shipped_codec.read_bytes()
    assert load_file(made / "model.safetensors")["talker.model.codec_embedding.weight"].dtype == torch.bfloat16


def test_each_held_out_sentence_comes_with_another_clip_of_its_voice(noise_corpus: Path) -> None:
    items = pack_base.held_out(noise_corpus, 1)
    assert len(items) == 6 and "rms" not in {item.speaker for item in items}
    rows = [{**row, "split": "held_out"} for row in make_corpus.lines_of(noise_corpus) if row["split"] == "train"]
    (noise_corpus / "more").mkdir(exist_ok=True)
    (noise_corpus / "more" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = pack_base.held_out(noise_corpus / "more", 2)
    assert len(pairs) == 12
    assert all(item.reference != item.recording and item.reference.name.split("-")[0] == item.speaker for item in pairs if item.reference)


def test_without_the_other_two_models_it_says_which_to_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_models, "HERE", tmp_path)
    with pytest.raises(UserError, match=r"whisper-demo-en\.zip is missing; pack it first"):
        pack_base.main([str(tmp_path / "run")])
