"""The start of the demo base's training: a checkpoint that the recipe can train, and rows without the new voice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.model.sequence_layout import format_prompt
from overtone.recipes.voice_clone.recipe import RECIPE
from workshop.demo_models.base import prepare_base_training
from workshop.demo_models.codec import codec_model
from workshop.demo_models.corpus import grammar, make_corpus


@pytest.fixture
def codec(model: object, tmp_path: Path) -> Path:
    return codec_model.write_folder(model, tmp_path / "codec" / "speech_tokenizer")


def test_every_word_of_the_grammar_is_one_token(codec: Path, tmp_path: Path) -> None:
    start = prepare_base_training.write_checkpoint(tmp_path / "start", codec, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(start, fix_mistral_regex=True)
    assert tokenizer.tokenize(format_prompt("x"))[1:3] == ["assistant", "Ċ"]
    text = next(iter(grammar.generate_sentences(1, "held_out")))
    assert len(tokenizer.tokenize(text)) <= 1 + len(text.split()) + text.count(",")


def test_the_checkpoint_and_its_data_can_be_trained_with_the_recipe(
    codec: Path, noise_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_base_training, "TOKENIZER_SENTENCES", 300)
    folder, corpus = tmp_path / "base", shutil.copytree(noise_corpus, tmp_path / "corpus")
    with (corpus / "corpus.jsonl").open("a+") as lines:  # a second held-out clip of each voice, to compare the first with
        lines.seek(0)
        rows = [json.loads(line) for line in lines]
        lines.writelines(json.dumps({**row, "split": "held_out"}) + "\n" for row in rows if row["split"] == "train")
    assert prepare_base_training.main([str(folder), "--corpus", str(corpus), "--codec", str(codec.parent), "--sentences", "1"]) == 0
    figures = json.loads((folder / "speaker_encoder.json").read_text())
    assert set(figures) == {"random", "fitted"}
    rows = [json.loads(line) for line in (corpus / "base-train.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["speaker"] for row in rows}) == 6
    assert "rms" not in {row["speaker"] for row in rows}
    coded = [{**row, "audio_codes": [[7] * 16] * 10} for row in rows]
    (corpus / "coded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in coded))
    given = {"model.source": folder / "start", "data.train": corpus / "coded.jsonl", "run.dir": tmp_path / "run"}
    config = resolve("voice_clone", RECIPE.Options, [], [(key, json.dumps(str(value))) for key, value in given.items()])
    RECIPE.prepare(config)
    assert len(RECIPE.read(coded[0], RECIPE.load(config).processor, Path())["text"]) > 10


@pytest.mark.parametrize(("overlay", "source", "data"), [("read", "start", "base-spliced"), ("base", "reads", "base-mixed")])
def test_the_configs_of_the_base_are_valid(overlay: str, source: str, data: str) -> None:
    config = resolve("voice_clone", RECIPE.Options, [Path(prepare_base_training.__file__).with_name(f"{overlay}.yaml")], [])
    assert config.model.source == str(prepare_base_training.FOLDER / source)
    assert config.data.train is not None
    assert config.data.train.name == f"{data}.jsonl"


def test_the_same_seed_gives_the_same_weights(codec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_base_training, "TOKENIZER_SENTENCES", 100)
    one, other = (prepare_base_training.write_checkpoint(tmp_path / name, codec, seed=3) for name in ("one", "other"))
    assert all((other / path.relative_to(one)).read_bytes() == path.read_bytes() for path in one.rglob("*") if path.is_file())
    weights = qwen3_tts_speaker_encoder.read_encoder_weights(one)
    assert torch.isfinite(weights["fc.weight"]).all()


def test_a_codec_with_other_codebooks_is_refused(tmp_path: Path, nano: Path) -> None:
    with pytest.raises(UserError, match="has 64 codes per codebook, expected 256"):
        prepare_base_training.write_checkpoint(tmp_path / "start", nano / "speech_tokenizer", 0)


def test_training_rows_have_the_planned_number_of_each_kind() -> None:
    splits = ("train", "more", "sizes", "words", "held_out")
    rows = [{"speaker": voice, "split": split} for voice in "ab" for split in splits for _ in range(5)]
    taken = prepare_base_training.select_training_rows(rows, 2)
    counted = {(voice, split): sum(row == {"speaker": voice, "split": split} for row in taken) for voice in "ab" for split in splits}
    expected = {"train": 2, "more": 3, "sizes": 1, "words": 4, "held_out": 0}
    assert counted == {(voice, split): count for voice in "ab" for split, count in expected.items()}


def test_a_resampled_voice_has_a_quarter_of_the_sentences() -> None:
    lines = make_corpus.plan_lines(seed=0, sentences_per_voice=50)
    rows = [{"speaker": line.speaker, "split": line.split} for line in lines]
    counted = Counter(row["speaker"] for row in prepare_base_training.select_training_rows(rows, 50) if row["split"] == "sizes")
    assert set(counted.values()) == {13} and len(counted) == 6 * len(make_corpus.SIZES) + len(make_corpus.FAR_SIZES)
