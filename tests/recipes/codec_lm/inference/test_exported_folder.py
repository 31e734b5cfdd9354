"""Tests of `overtone.recipes.codec_lm.inference.exported_folder`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.inference.exported_folder import ExportedSpeechTokens
from overtone.recipes.speech.interface import SpeechRequest
from tests.recipes.codec_lm import tiny_models

TEXT = "Good day."


def test_an_export_knows_its_speakers_their_languages_and_its_settings(exported: Path) -> None:
    found = ExportedSpeechTokens.inspect(exported)
    assert found.languages == {"ann": "english", "bob": "english"} and found.positions == 256
    assert found.generation["repetition_penalty"] == 1.3 and found.family.codebook_size == 16


def test_a_released_model_has_the_voices_of_its_authors(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "released")
    (folder / "voices.json").write_text(json.dumps({"family": tiny_models.FAMILY.model_dump()}))
    assert list(ExportedSpeechTokens.inspect(folder).languages)[:2] == ["tara", "leah"]
    nameless = tiny_models.FAMILY.model_copy(update={"voices": []})
    (folder / "voices.json").write_text(json.dumps({"family": nameless.model_dump()}))
    with pytest.raises(UserError, match="released names no speakers; train it on a voice"):
        ExportedSpeechTokens.inspect(folder).check(SpeechRequest(TEXT, None))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (SpeechRequest(" ", "ann"), "has nothing to speak"),
        (SpeechRequest(TEXT, None), "--speaker is missing; .* has several speakers: ann, bob"),
        (SpeechRequest(TEXT, "eve"), "--speaker eve: .* does not have this speaker; it has ann, bob"),
        (SpeechRequest(TEXT, "ann", "de"), "--language de: this model takes no language; it speaks that of its training data, english"),
        (SpeechRequest(TEXT, "ann", reference=Path("a.wav")), "cannot clone one; give one of its speakers: ann, bob"),
        (SpeechRequest("a<custom_token_2>", "ann"), "contains the control tokens"),
        (SpeechRequest("a" * 118, "ann"), "a text of 129 tokens is too long for this model, which takes 128"),
    ],
)
def test_a_request_that_cannot_be_spoken_is_refused(request_: SpeechRequest, message: str, exported: Path) -> None:
    with pytest.raises(UserError, match=message):
        ExportedSpeechTokens.inspect(exported).check(request_)


def test_the_prompt_is_that_of_training(exported: Path) -> None:
    found = ExportedSpeechTokens.inspect(exported)
    found.check(SpeechRequest("a" * 117, "ann", "en"))
    prompt = found.processor.tokenizer.decode(found.make_prompt(TEXT, "Ann"))
    begin, end = "<custom_token_3><|begin_of_text|>", "<|eot_id|><custom_token_4><custom_token_5><custom_token_1>"
    assert prompt == f"{begin}ann: {TEXT}{end}"


@pytest.mark.parametrize("speakers", [3, "ann", ["ann"], [{"name": "ann"}], {"ann": "english"}, [{"name": ["ann"], "language": 1}]])
def test_damaged_speakers_are_refused(exported: Path, tmp_path: Path, speakers: object) -> None:
    folder = shutil.copytree(exported, tmp_path / "damaged")
    voices = json.loads((folder / "voices.json").read_text())
    (folder / "voices.json").write_text(json.dumps({**voices, "speakers": speakers}))
    with pytest.raises(UserError, match="voices.json: speakers: expected a list with a name and a language for each"):
        ExportedSpeechTokens.inspect(folder)


@pytest.mark.parametrize("positions", [None, "256", 0])
def test_a_config_without_a_number_of_positions_is_refused(exported: Path, tmp_path: Path, positions: object) -> None:
    folder = shutil.copytree(exported, tmp_path / "damaged")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    with pytest.raises(UserError, match="config.json: max_position_embeddings .*: expected at least 1"):
        ExportedSpeechTokens.inspect(folder)


def test_what_is_no_language_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mimi"}))
    with pytest.raises(UserError, match="model_type 'mimi' is not a causal language model.*overtone export RUN"):
        ExportedSpeechTokens.inspect(tmp_path)
