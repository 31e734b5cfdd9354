"""Which requests a folder can speak; errors list the valid values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.csm.inference.exported_folder import ExportedCsm
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.sampling_settings import CONFIG
from tests.recipes.csm.tiny_csm import LearnedCsm


@pytest.fixture
def exported(learned: LearnedCsm) -> ExportedCsm:
    return ExportedCsm.inspect(learned.folder)


def test_an_export_has_its_trained_speakers(exported: ExportedCsm) -> None:
    assert exported.speakers == {"ann": 0, "bob": 1} and exported.first_speaker == "ann"
    assert exported.free_number == 2, "a cloned voice is not mixed with a trained one"
    completed = exported.complete(SpeechRequest("Hi.", "ANN"))
    assert (completed.speaker, completed.language) == ("ann", "english")


def test_a_released_model_has_the_speakers_of_its_examples(tiny: Path) -> None:
    released = ExportedCsm.inspect(tiny)
    assert released.speakers == {"0": 0, "1": 1} and released.first_speaker is None and released.free_number == 0
    assert released.generation["temperature"] == 0.9
    with pytest.raises(UserError, match=r"--speaker ann: .* does not have this speaker; it has 0, 1"):
        released.check(SpeechRequest("Hi.", "ann"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (SpeechRequest(" ", "ann"), "has nothing to speak"),
        (SpeechRequest("Hi.", None), "--speaker is missing; .* has several speakers: ann, bob"),
        (SpeechRequest("Hi.", "carl"), "--speaker carl: .* does not have this speaker; it has ann, bob"),
        (SpeechRequest("Hi.", "ann", "german"), "language 'german': CSM speaks only english"),
        (SpeechRequest("Hi.", "ann", "xx"), "--language xx: unknown"),
        (SpeechRequest("Hi.", "ann", reference=Path("a.wav"), reference_text="Ho."), "each choose a voice"),
        (SpeechRequest("Hi.", None, reference=Path("a.wav"), reference_text="Ho."), "--reference a.wav: no such file"),
        (SpeechRequest("Hi.", None, reference=Path(__file__)), "its transcript is missing.*--reference-text, or ref_text"),
        (SpeechRequest("Hello " * 1500, "ann"), r"a text of \d+ tokens is too long for this model, which takes 1024"),
        (SpeechRequest("Hi <|AUDIO|>.", "ann"), "contains the special tokens"),
    ],
)
def test_a_request_that_it_cannot_speak_is_refused(request_: SpeechRequest, message: str, exported: ExportedCsm) -> None:
    with pytest.raises(UserError, match=message):
        exported.check(request_)


@pytest.mark.parametrize("language", [None, "en", "English", "auto"])
def test_english_needs_no_name(language: str | None, exported: ExportedCsm) -> None:
    exported.check(SpeechRequest("Hi.", "bob", language))


def test_a_folder_of_another_family_is_refused(learned: LearnedCsm, tmp_path: Path) -> None:
    folder = shutil.copytree(learned.folder, tmp_path / "other")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match=r"--model .*other: .*llama.*overtone export RUN --to"):
        ExportedCsm.inspect(folder)
    shutil.copy(learned.folder / "config.json", folder / "config.json")
    (folder / CONFIG).write_text('{"depth_decoder_top_k": -1}')
    with pytest.raises(UserError, match="depth_decoder_top_k -1 is out of range"):
        ExportedCsm.inspect(folder)
