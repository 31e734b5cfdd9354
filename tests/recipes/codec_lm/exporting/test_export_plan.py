"""Tests of `overtone.recipes.codec_lm.exporting.export_plan`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.recipes.codec_lm.exporting.export_plan import plan_export
from overtone.recipes.codec_lm.recipe import RECIPE
from overtone.recipes.codec_lm.state import CodecLmState
from overtone.recipes.speech.run_codec import CodecRecord
from tests.recipes.codec_lm import tiny_models


def test_an_export_holds_model_voices_and_codec_and_no_pickle(exported: Path) -> None:
    found = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert found == {
        *("README.md", "config.json", "generation_config.json", "model.safetensors", "overtone.json", "voices.json"),
        *("tokenizer.json", "tokenizer_config.json", "speech_codec/config.json", "speech_codec/model.safetensors"),
    }
    voices = json.loads((exported / "voices.json").read_text())
    assert [speaker["name"] for speaker in voices["speakers"]] == ["ann", "bob"]
    assert voices["family"] == tiny_models.FAMILY.model_dump()
    assert "lm_head.weight" not in load_file(exported / "model.safetensors"), "it is tied"


def test_the_codec_is_the_runs_own_value_by_value(full_run: Path, exported: Path) -> None:
    published = torch.load(full_run.parent / "codec" / "pytorch_model.bin", weights_only=True)
    written = load_file(exported / "speech_codec" / "model.safetensors")
    assert written.keys() == published.keys() and all(torch.equal(written[name], published[name]) for name in written)
    assert open_codec(str(exported)).digest() == open_codec(str(full_run.parent / "codec")).digest()


def test_stock_generation_stops_at_the_end_of_speech_and_samples_as_the_authors(exported: Path) -> None:
    settings = json.loads((exported / "generation_config.json").read_text())
    end = json.loads((exported / "tokenizer.json").read_text())["added_tokens"]
    (end_id,) = [token["id"] for token in end if token["content"] == "<custom_token_2>"]
    assert settings == {"do_sample": True, "temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.3, "eos_token_id": end_id}


def test_settings_of_the_base_stay(tmp_path: Path) -> None:
    config = tiny_models.configure(tmp_path)
    RECIPE.prepare(config)
    (tmp_path / "base" / "generation_config.json").write_text('{"temperature": 0.4, "eos_token_id": 1, "bos_token_id": 0}')
    written = json.loads(plan_export(tmp_path / "base", RECIPE.load(config).state).files["generation_config.json"])
    assert (written["temperature"], written["bos_token_id"]) == (0.4, 0) and written["eos_token_id"] != 1


def test_references_to_code_in_the_codecs_config_are_not_exported(tmp_path: Path) -> None:
    config = tiny_models.configure(tmp_path)
    path = tmp_path / "codec" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoModel": "evil.Model"}}))
    RECIPE.prepare(config)
    written = plan_export(tmp_path / "base", RECIPE.load(config).state).files["speech_codec/config.json"]
    assert json.loads(written) == tiny_models.SNAC_CONFIG


def test_a_codec_that_changed_since_the_training_is_refused(full_run: Path, tmp_path: Path) -> None:
    work = shutil.copytree(full_run.parent / "run", tmp_path / "run")
    state = CodecLmState.model_validate(json.loads(next(work.glob("checkpoints/*/state.json")).read_text())["recipe_state"])
    other = tiny_models.write_codec(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match=r"other is not the codec of this run .digest \w+…, expected \w+…"):
        plan_export(full_run.parent / "base", state.model_copy(update={"codec": CodecRecord(source=str(other), digest=state.codec.digest)}))


def test_an_export_can_be_trained_further_with_its_own_codec(exported: Path, tmp_path: Path) -> None:
    again = tiny_models.trained(
        tmp_path, ("model.source", str(exported)), ("options.codec", "null"), ("train.steps", "1"), rows=tiny_models.make_rows(("Cid",))
    )
    made = export.export(again, tmp_path / "export")
    assert [speaker["name"] for speaker in json.loads((made / "voices.json").read_text())["speakers"]] == ["cid"]
    assert open_codec(str(made)).digest() == open_codec(str(exported)).digest()
