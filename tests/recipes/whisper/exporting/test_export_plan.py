"""An export is a folder that stock transformers loads, and an input of `overtone voice`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration, pipeline

from overtone.data_prep.transcription import whisper_engine
from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.recipes.whisper.exporting.export_plan import plan_export, read_defaults
from overtone.recipes.whisper.options import Options
from overtone.recipes.whisper.state import WhisperState
from tests.recipes.whisper.tiny_whisper import make_tone, train_here


def test_stock_transformers_loads_what_was_trained(full_run: Path, exported: Path, base: Path) -> None:
    model, found = WhisperForConditionalGeneration.from_pretrained(exported, output_loading_info=True)
    assert set(found["missing_keys"]) <= {"proj_out.weight"} and not found["unexpected_keys"]
    with rank_shards.open_shards(checkpoint.find(full_run)) as (read, shapes):
        trained = {name: read(name, None) for name in shapes if not name.startswith("optimizer.")}
    stock, before = dict(model.named_parameters()), load_file(base / "model.safetensors")
    assert trained.keys() == stock.keys() - {"model.encoder.embed_positions.weight"}
    assert all(torch.equal(stock[name], value) and not torch.equal(before[name], value) for name, value in trained.items())


def test_the_pipeline_transcribes_with_an_export(exported: Path) -> None:
    recognize = pipeline("automatic-speech-recognition", model=str(exported), device="cpu")
    found = recognize({"raw": make_tone(0), "sampling_rate": 16_000}, generate_kwargs={"max_new_tokens": 3, "language": "en"})
    assert isinstance(found["text"], str)
    assert "pipeline_tag: automatic-speech-recognition" in (exported / "README.md").read_text()


def test_data_preparation_loads_an_export_with_equal_weights(exported: Path) -> None:
    model = whisper_engine.load_whisper(str(exported), "cpu")
    written = load_file(exported / "model.safetensors")
    assert torch.equal(model.decoder.token_embedding.weight, written["model.decoder.embed_tokens.weight"])
    assert torch.equal(model.encoder.blocks[0].mlp[0].weight, written["model.encoder.layers.0.fc1.weight"])


def test_language_and_task_of_the_run_are_those_of_the_export(base: Path, english_base: Path, tmp_path: Path) -> None:
    plan = plan_export(base, WhisperState(language="de", task="translate"))
    (tmp_path / "generation_config.json").write_bytes(plan.files["generation_config.json"])
    assert read_defaults(tmp_path) == Options(language="de", task="translate")
    (tmp_path / "generation_config.json").write_text(json.dumps({"language": "<|fr|>", "task": None}))
    assert read_defaults(tmp_path) == Options(language="fr")
    (tmp_path / "generation_config.json").write_text(json.dumps({"task": "sing"}))
    with pytest.raises(UserError, match="task is 'sing', expected transcribe or translate"):
        read_defaults(tmp_path)
    assert json.loads(plan.files["generation_config.json"])["lang_to_id"]["<|de|>"] == 50261
    assert "generation_config.json" not in plan.copy
    english = plan_export(english_base, WhisperState(language=None, task="transcribe"))
    assert "generation_config.json" not in english.files and "generation_config.json" in english.copy


def test_a_base_without_the_tokens_of_languages_gets_them(base: Path, tmp_path: Path) -> None:
    """Else transformers' `generate` fails with the language and the task of the run."""
    expected = json.loads((base / "generation_config.json").read_text())
    shutil.copytree(base, tmp_path / "base")
    state, generation = WhisperState(language="de", task="transcribe"), tmp_path / "base" / "generation_config.json"
    generation.unlink()
    assert json.loads(plan_export(tmp_path / "base", state).files[generation.name]) == expected | state.as_json()
    generation.write_text('{"max_length": 9}')
    assert json.loads(plan_export(tmp_path / "base", state).files[generation.name]) == expected | state.as_json() | {"max_length": 9}


def test_a_copy_of_the_embedding_in_the_base_is_left_out(base: Path) -> None:
    """Some fine-tuned models have one; it would be untrained."""
    keep = plan_export(base, WhisperState(language=None, task="transcribe")).keep
    assert not keep("proj_out.weight") and keep("model.decoder.embed_tokens.weight")


@pytest.mark.slow
@pytest.mark.ci
def test_adapters_are_merged_into_the_export(base: Path, tmp_path: Path) -> None:
    lora = (("model.lora", "{rank: 4, alpha: 8, dora: true}"), ("train.steps", "1"))
    folder = export.export(train_here(tmp_path, base, *lora), tmp_path / "export")
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert before.keys() == after.keys()
    assert changed == {name for name in before if ".layers." in name and name.endswith(".weight") and before[name].dim() == 2}
