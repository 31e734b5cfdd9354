"""Tests of `overtone.recipes.speech.serving.text_to_speech_page` with a real model; test_serve_command.py has a
browser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.finetune.pages.jinja_environment import make_environment
from overtone.recipes.qwen3_tts.inference.synthesizer import open_synthesizer
from overtone.recipes.speech.serving.openai_api import Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.text_to_speech_page import (
    CLIP,
    RESULT,
    TEMPLATE,
    Controls,
    Player,
    SideUpdate,
    SpeakCall,
    make_player,
    render_page,
)
from overtone.recipes.speech.serving.uploaded_clips import Clips
from tests.data_prep.page import Page

HELLO = "Never late."


@pytest.fixture(scope="module")
def controls(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controls]:
    folder = tmp_path_factory.mktemp("page")
    models = {kind: open_synthesizer(export(fresh, kind, folder / kind)) for kind in ("custom_voice", "base")}
    speech, clips = SpeechQueue(models, room=2), Clips(folder / "clips")
    yield Controls(speech, Limits(chars=100, seconds=0.5), clips)
    speech.close()
    clips.close()


def make_call(*sides: tuple[str, str], **fields: Any) -> SpeakCall:
    chosen = [{"model": model, "voice": voice} for model, voice in sides]
    return SpeakCall.model_validate({"text": HELLO, "sides": chosen, "temperature": 0.9, "greedy": False, "seed": 0, **fields})


def speak(controls: Controls, call: SpeakCall) -> list[SideUpdate]:
    async def collect() -> list[SideUpdate]:
        return [each async for each in controls.speak(call)]

    return asyncio.run(collect())


def kept(controls: Controls, clip: Path) -> str:
    """The path of the file after an upload."""
    return str(controls.clips.keep(clip.read_bytes(), clip.name))


def test_both_sides_are_updated_during_generation(controls: Controls) -> None:
    assert controls.voices("custom_voice") == ["anna", "bert"] and controls.voices("base") == ["anna", "bert", CLIP]
    steps = speak(controls, make_call(("custom_voice", "anna"), ("base", "bert")))
    assert steps[0] == (0, "custom_voice · anna is waiting in the queue")
    assert (1, "base · bert is speaking: 0.6 s") in steps
    made = [step for step in steps if isinstance(step.result, Player)]
    assert [step.side for step in made] == [0, 1] and all("cut off" in step.result.notes[-1] for step in made)


@pytest.mark.parametrize("sampled", [True, False])
def test_initial_settings_are_those_of_the_model(controls: Controls, monkeypatch: pytest.MonkeyPatch, sampled: bool) -> None:
    model = next(iter(controls.speech.models.values()))
    monkeypatch.setattr(model, "_defaults", {"do_sample": sampled, "temperature": 0.4})
    fields = {one["id"]: one for one in Page(render_page(controls)).all("input")}
    assert (fields["temperature"]["value"], "checked" in fields["greedy"]) == ("0.4", not sampled), (
        "a temperature alone would mean sampling"
    )


def test_a_base_clones_a_clip(controls: Controls, fresh: Any) -> None:
    clip = kept(controls, fresh.config.data.train.parent / "low.flac")
    last = speak(controls, make_call(("base", CLIP), clip=clip, clip_text="It is late."))[-1]
    assert last.side == 0 and isinstance(last.result, Player) and last.result.title == f"base · {CLIP}"


def test_a_model_without_named_voices_only_clones(controls: Controls, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_voices(kind: str, *names: str) -> None:
        monkeypatch.setattr(controls.speech.models[kind], "_speakers", names)

    assert not controls.only_clones("base")
    with_voices("base")
    with_voices("custom_voice", "me")
    assert controls.voices("base") == [CLIP] and controls.only_clones("base")
    assert controls.voices("custom_voice") == ["me"] and not controls.only_clones("custom_voice")


def test_the_page_starts_with_models_that_speak_without_a_clip(controls: Controls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first click must not be an error: of a text that is too long, a voice without a clip, or a temperature beyond the slider."""

    def start(**voices: list[str]) -> tuple[str, str, bool]:
        monkeypatch.setattr(controls, "voices", lambda model: voices.get(model, []))
        monkeypatch.setattr(controls.speech, "models", dict.fromkeys(voices, model))
        return (*controls.choose_sides(), controls.only_clones(controls.choose_sides()[0]))

    model = next(iter(controls.speech.models.values()))
    assert start(one=["anna"]) == ("one", "", False)
    assert start(base=[CLIP], one=["anna"]) == ("one", "", False)
    assert start(base=[CLIP], one=["anna"], two=["bert", CLIP]) == ("one", "two", False)
    assert start(base=[CLIP]) == ("base", "", True)
    monkeypatch.setattr(controls, "limits", Limits(chars=10, seconds=1.0))
    monkeypatch.setattr(model, "_defaults", {"do_sample": True, "temperature": 9.0})
    page = Page(render_page(controls))
    assert ("textarea", "The mornin") in page.texts and "open" in page.all("details")[0]
    assert next(one["value"] for one in page.all("input") if one["id"] == "temperature") == "1.5"
    monkeypatch.setattr(controls.speech, "models", {"one": model})
    monkeypatch.setattr(controls, "voices", lambda _: ["anna"])
    assert "open" not in Page(render_page(controls)).all("details")[0]


def test_every_control_has_a_label(controls: Controls) -> None:
    page = Page(render_page(controls))
    labels = [text for tag, text in page.texts if tag == "label"]
    assert labels[:5] == ["Text", "Model A", "Voice A", "Model B", "Voice B"] and len(labels) == 11
    assert len(labels) == len(page.all("select")) + len(page.all("input")) + len(page.all("textarea"))


def test_bad_requests_are_refused_before_speech_is_generated(controls: Controls, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.flac", np.random.default_rng(0).normal(0, 0.1, 61 * 8000), 8000)
    (tmp_path / "none.wav").write_bytes(b"no sound")
    long, none = kept(controls, tmp_path / "long.flac"), kept(controls, tmp_path / "none.wav")
    anna, clone = ("custom_voice", "anna"), ("base", CLIP)
    for sides, fields, message in (
        ([anna], {"text": " "}, "enter a text to speak"),
        ([anna], {"text": "a" * 101}, "101 characters; at most 100 are accepted"),
        ([("custom_voice", "carl")], {}, "has no voice 'carl'"),
        ([("custom_voice", CLIP)], {}, "has no voice 'the reference clip'"),
        ([("gone", "anna")], {}, "gone has no voice"),
        ([anna, ("base", "")], {}, "base has no voice ''"),
        ([clone], {}, "record or upload a reference clip first"),
        ([clone], {"clip": long}, "61 s or more; at most 60 s are read"),
        ([clone], {"clip": none}, "cannot be used"),
        ([clone], {"clip": f"{tmp_path}/long.flac"}, "has been removed; upload it again"),
        ([anna], {"clip_text": "a" * 101}, "transcript of the clip has 101 characters; at most 100 are accepted"),
        ([anna], {"language": "elvish"}, "elvish"),
    ):
        with pytest.raises(UserError, match=message):
            speak(controls, make_call(*sides, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": -1}, {"seed": None}, {"seed": 2**63}, {"seed": 0.5}, {"temperature": 0}, {"temperature": 1.6}, {"temperature": "hot"},
        {"greedy": 1}, {"text": None}, {"sides": []}, {"sides": [{"model": "a", "voice": "b"}] * 3}, {"sides": [{"model": "a"}]}, {"x": 1},
    ],
)  # fmt: skip
def test_fields_that_the_page_cannot_send_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        make_call(("custom_voice", "anna"), **fields)


def test_a_result_has_its_duration_and_texts_are_escaped() -> None:
    template = make_environment(TEMPLATE.parent).get_template(RESULT)
    one = Page(template.render(result=Player("<b>a</b>", 2.0, (), "data:s", "data:p")))
    assert one.all("figure")[0]["data-seconds"] == "2.0" and ("b", "<b>a</b>") in one.texts and "cut off" not in one.text()
    assert [one.all(tag)[0]["src"] for tag in ("audio", "img")] == ["data:s", "data:p"]
    assert "1.00 s · cut off" in template.render(result=Player("b", 1.0, ("cut off",), "data:s", "data:p"))
    assert Page(template.render(result="<i>")).texts == [("p", "<i>")]
    silent = make_player("silent", "me", np.zeros(0, np.float32), 24000)
    assert silent.picture == "" and Page(template.render(result=silent)).all("img") == []
