"""The recognizer decodes greedily from the protocol's prompt; other folders are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.seed_tts_eval.whisper_recognizer import find_recognizer, read_resampled
from tests.recipes.speech.evaluation.seed_tts_eval import stand_ins, whisper_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_models.save_whisper(tmp_path_factory.mktemp("whisper") / "asr")


def test_transcripts_are_greedy_from_the_protocols_prompt(folder: Path, tmp_path: Path) -> None:
    """Token by token, without `generate`: start, English, transcription, no timestamps."""
    clip = tmp_path / "clip.wav"
    stand_ins.write_wave(clip, {"seed": 3, "samples": 30_000, "rate": 24_000, "channels": 1})
    recognizer = find_recognizer(str(folder)).load()
    tokenizer, model = recognizer.processor.tokenizer, WhisperForConditionalGeneration.from_pretrained(folder).eval()
    prompt = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    tokens = tokenizer.convert_tokens_to_ids(prompt)
    features = recognizer.processor(read_resampled(clip), sampling_rate=16_000, return_tensors="pt").input_features
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    with torch.inference_mode():
        while len(tokens) < 16 and tokens[-1] != end:
            logits = model(input_features=features, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(logits.argmax()))
    expected = tokenizer.decode(tokens, skip_special_tokens=True)
    assert expected and recognizer.transcribe(clip) == expected


def test_a_folder_is_named_by_its_digests(folder: Path) -> None:
    found = find_recognizer(str(folder))
    assert found.revision is None and list(found.digests) == ["model.safetensors"] and len(found.digests["model.safetensors"]) == 64


def test_folders_without_weights_or_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="--protocol-asr .*contains no \\*.safetensors weights"):
        find_recognizer(str(tmp_path / "empty"))
    bare, partial = tmp_path / "bare", tmp_path / "partial"
    for other in (bare, partial):
        other.mkdir()
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (other / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match="--protocol-asr .*bare: cannot be loaded"):
        find_recognizer(str(bare)).load()
    for name in (
        "vocab.json",
        "merges.txt",
        "preprocessor_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ):
        if (folder / name).is_file():
            (partial / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.encoder.conv1.weight")
    save_file(weights, partial / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 weights"):
        find_recognizer(str(partial)).load()
