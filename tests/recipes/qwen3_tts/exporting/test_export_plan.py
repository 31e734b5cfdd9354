"""The export plan: what is kept, changed, written and copied."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.exporting import export_plan
from overtone.recipes.qwen3_tts.model import config_factory
from overtone.recipes.qwen3_tts.state import VoiceCloneState
from overtone.recipes.voice_clone.recipe import RECIPE

STORED: dict[str, Any] = {
    "speakers": [
        {"name": "abe", "row": 1016, "language": None, "clips": 2, "seconds": 30.0},
        {"name": "zoe", "row": 1018, "language": "english", "clips": 3, "seconds": 60.0},
    ],
    "data": {"name": "mine/train.jsonl", "sha256": "ab" * 32, "clips": 5},
    "base": {"name": "Qwen/Qwen3-TTS-12Hz-0.6B-Base", "revision": None},
}
STATE = VoiceCloneState.model_validate(STORED)
VECTORS = {"speaker_vectors": torch.arange(64, dtype=torch.float32).reshape(2, 32)}


def test_the_formats_are_those_of_the_recipe() -> None:
    assert RECIPE.formats == export_plan.FORMATS


@pytest.mark.parametrize(("kind", "encoder"), [("custom_voice", False), ("base", True)])
def test_the_plan_keeps_all_tensors_and_inserts_the_speaker_rows(kind: str, encoder: bool, nano: Path) -> None:
    plan = export_plan.plan_export(nano, STATE, VECTORS, kind)
    names = load_file(nano / "model.safetensors")
    assert {name for name in names if not plan.keep(name)} == {
        name for name in names if name.startswith("speaker_encoder.") and not encoder
    }
    assert len([name for name in names if name.startswith("speaker_encoder.")]) > 50
    assert list(plan.edit) == ["talker.model.codec_embedding.weight"]
    before = names["talker.model.codec_embedding.weight"]
    kept = before.clone()
    after = plan.edit["talker.model.codec_embedding.weight"](before)
    assert torch.equal(before, kept), "the input tensor is not changed"
    assert torch.equal(after[[1016, 1018]], VECTORS["speaker_vectors"])
    untouched = [row for row in range(len(after)) if row not in (1016, 1018)]
    assert torch.equal(after[untouched], before[untouched])


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_the_plan_writes_and_copies_the_files_of_an_export(kind: str, nano: Path) -> None:
    plan = export_plan.plan_export(nano, STATE, VECTORS, kind)
    config, base = json.loads(plan.files["config.json"]), json.loads((nano / "config.json").read_text())
    assert config["tts_model_type"] == kind
    assert config["talker_config"]["spk_id"] == {"abe": 1016, "zoe": 1018}
    assert config["talker_config"]["spk_is_dialect"] == {"abe": False, "zoe": False}
    for changed in (config, base):
        del changed["tts_model_type"], changed["talker_config"]["spk_id"], changed["talker_config"]["spk_is_dialect"]
    assert config == base
    assert json.loads(plan.files["voices.json"]) == STORED
    copied = {"generation_config.json", "merges.txt", "preprocessor_config.json", "tokenizer_config.json", "vocab.json"}
    assert set(plan.copy) == copied | {"speech_tokenizer"} and set(plan.files) == {"config.json", "voices.json", "README.md"}


def test_speakers_of_the_base_are_kept() -> None:
    config = copy.deepcopy(config_factory.make_released_config("0.6B"))
    config["talker_config"] |= {"spk_id": {"vivian": 3065, "abe": 3000}, "spk_is_dialect": {"vivian": "beijing_dialect", "abe": False}}
    talker = export_plan.edit_config(config, STATE, "base")["talker_config"]
    assert talker["spk_id"] == {"vivian": 3065, "abe": 1016, "zoe": 1018}
    assert talker["spk_is_dialect"] == {"vivian": "beijing_dialect", "abe": False, "zoe": False}


def test_an_unknown_format_and_an_incomplete_base_are_refused(nano: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--format onnx: Qwen3-TTS is exported as custom_voice or base"):
        export_plan.plan_export(nano, STATE, VECTORS, "onnx")
    (tmp_path / "config.json").write_text((nano / "config.json").read_text())
    with pytest.raises(UserError, match=r"lacks generation_config.json, speech_tokenizer"):
        export_plan.plan_export(tmp_path, STATE, VECTORS, "base")


def test_a_checkpoint_without_a_vector_for_each_speaker_is_refused(nano: Path) -> None:
    with pytest.raises(UserError, match="does not have one vector for each of its speakers"):
        export_plan.plan_export(nano, STATE.model_copy(update={"speakers": STATE.speakers[:1]}), VECTORS, "base")


def test_rows_outside_the_embedding_table_are_refused(nano: Path) -> None:
    far = [speaker.model_copy(update={"row": 10**12}) for speaker in STATE.speakers]
    edit = export_plan.plan_export(nano, STATE.model_copy(update={"speakers": far}), VECTORS, "base").edit[export_plan.CODEC_EMBEDDING]
    with pytest.raises(UserError, match=r"do not fit .* of shape \(8, 32\); choose another checkpoint"):
        edit(torch.zeros(8, 32))


def test_files_written_by_an_earlier_export_are_not_copied(fresh: Any, export: Any, tmp_path: Path) -> None:
    exported = export(fresh, "base", tmp_path / "base")
    (exported / "overtone.json").write_text("{}")
    assert set(export_plan.list_files_to_copy(exported)).isdisjoint({"overtone.json", "voices.json", "config.json"})
