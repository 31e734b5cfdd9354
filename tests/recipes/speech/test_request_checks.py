"""Invalid requests are refused with the option and the valid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import Kind
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.interface import SpeechRequest


def test_the_only_speaker_needs_no_name() -> None:
    assert request_checks.find_speaker(None, {"anna": 3}, Path("m")) == "anna"
    assert request_checks.find_speaker(" BERT", ["anna", "bert"], Path("m")) == "bert"


@pytest.mark.parametrize(
    ("given", "speakers", "message"),
    [
        (None, ["bert", "anna"], "--speaker is missing; m has several speakers: anna, bert"),
        (None, [], "m has no named speakers; give --reference"),
        ("carl", ["bert", "anna"], "--speaker carl: m does not have this speaker; it has anna, bert"),
        ("carl", [], "it has none"),
    ],
)
def test_a_speaker_that_the_model_lacks_is_refused(given: str | None, speakers: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        request_checks.find_speaker(given, speakers, Path("m"))


def test_text_and_clip_are_checked(tmp_path: Path) -> None:
    clip = tmp_path / "clip.wav"
    request_checks.check_text(SpeechRequest("Hi.", None))
    request_checks.check_length("Hi.", 5, 5)
    with pytest.raises(UserError, match="has nothing to speak"):
        request_checks.check_text(SpeechRequest(" \n", None))
    with pytest.raises(UserError, match="a text of 6 tokens is too long for this model, which takes 5; shorten it: 'Hi.'"):
        request_checks.check_length("Hi.", 6, 5)
    with pytest.raises(UserError, match=f"--reference {clip}: no such file"):
        request_checks.check_clip(SpeechRequest("Hi.", None, reference=clip))
    clip.touch()
    request_checks.check_clip(SpeechRequest("Hi.", None, reference=clip))
    with pytest.raises(UserError, match="each choose a voice"):
        request_checks.check_clip(SpeechRequest("Hi.", "anna", reference=clip))


def test_a_folder_of_another_family_is_named_with_the_next_step(tmp_path: Path) -> None:
    kind = Kind("a model of tones", {"tones"})
    (tmp_path / "config.json").write_text('{"model_type": "tones", "size": 3}')
    assert request_checks.check_model_config(tmp_path, kind)["size"] == 3
    (tmp_path / "config.json").write_text('{"model_type": "bells"}')
    with pytest.raises(UserError, match="^--model .*'bells' is not a model of tones.*`overtone export RUN --to .*` creates a model$"):
        request_checks.check_model_config(tmp_path, kind)
