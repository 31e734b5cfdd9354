"""Tests of `overtone.recipes.speech.serving.text_to_speech_page` with a real model; test_http_server.py has gradio's client and a
browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.recipes.speech.serving.openai_api import Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.text_to_speech_page import (
    CLIP,
    NOBODY,
    TRAINED,
    Controls,
    Player,
    _enable_speaking,
    build_page,
    make_player,
    render_card,
    render_sides,
    setting_inputs,
)
from overtone.recipes.speech.serving.uploaded_clips import Clips
from overtone.recipes.voice_clone.inference.synthesizer import open_synthesizer

HELLO = "Never late."
PLAIN = ["", TRAINED, 0.9, False, 0]


@pytest.fixture(scope="module")
def controls(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controls]:
    folder = tmp_path_factory.mktemp("page")
    models = {kind: open_synthesizer(export(fresh, kind, folder / kind)) for kind in ("custom_voice", "base")}
    speech, clips = SpeechQueue(models, room=2), Clips(folder / "clips")
    yield Controls(speech, Limits(chars=100, seconds=0.5), clips)
    speech.close()
    clips.close()


def speak(controls: Controls, *arguments: Any) -> list[list[str]]:
    async def collect() -> list[list[str]]:
        return [each async for each in controls.speak(*arguments)]

    return asyncio.run(collect())


def kept(controls: Controls, clip: Path) -> str:
    """The path of the file after an upload."""
    return str(controls.clips.keep(clip.read_bytes(), clip.name))


def test_both_sides_are_updated_during_generation(controls: Controls) -> None:
    assert controls.voices("custom_voice") == ["anna", "bert"] and controls.voices("base") == ["anna", "bert", CLIP]
    steps = speak(controls, HELLO, "custom_voice", "anna", "base", "bert", None, *PLAIN)
    assert "custom_voice · anna is waiting" in steps[0][0] and steps[0][1] == ""
    assert "<audio" in steps[-2][0] and "base · bert is speaking: 0.6 s" in steps[-2][1]
    assert all("<audio" in side and "cut off" in side for side in steps[-1])


@pytest.mark.parametrize("sampled", [True, False])
def test_initial_settings_are_those_of_the_model(controls: Controls, monkeypatch: pytest.MonkeyPatch, sampled: bool) -> None:
    import gradio

    model = next(iter(controls.speech.models.values()))
    monkeypatch.setattr(model, "_defaults", {"do_sample": sampled, "temperature": 0.4})
    with gradio.Blocks():
        _, temperature, greedy, _ = setting_inputs(gradio, controls)
    assert (temperature.value, greedy.value) == (0.4, not sampled), "a temperature alone would mean sampling"


def test_a_base_clones_a_clip(controls: Controls, fresh: Any) -> None:
    clip = kept(controls, fresh.config.data.train.parent / "low.flac")
    last = speak(controls, HELLO, "base", CLIP, NOBODY, None, clip, "It is late.", *PLAIN[1:])[-1]
    assert f"base · {CLIP}" in last[0] and last[1] == ""


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
    import gradio

    def start(**voices: list[str]) -> tuple[str, str, bool]:
        monkeypatch.setattr(controls, "voices", lambda model: voices.get(model, []))
        monkeypatch.setattr(controls.speech, "models", dict.fromkeys(voices, model))
        return (*controls.choose_sides(), controls.only_clones(controls.choose_sides()[0]))

    model = next(iter(controls.speech.models.values()))
    assert start(one=["anna"]) == ("one", NOBODY, False)
    assert start(base=[CLIP], one=["anna"]) == ("one", NOBODY, False)
    assert start(base=[CLIP], one=["anna"], two=["bert", CLIP]) == ("one", "two", False)
    assert start(base=[CLIP]) == ("base", NOBODY, True)
    monkeypatch.setattr(controls, "limits", Limits(chars=10, seconds=1.0))
    monkeypatch.setattr(model, "_defaults", {"do_sample": True, "temperature": 9.0})
    page = build_page(controls)
    parts = {block.elem_id: block for block in page.blocks.values() if isinstance(block, gradio.components.Component) and block.elem_id}
    assert not parts["speak"].interactive and "reference clip first" in parts["speak"].value and parts["text"].value == "The mornin"
    assert [block.value for block in page.blocks.values() if isinstance(block, gradio.Slider)] == [1.5]
    monkeypatch.setattr(controls.speech, "models", {"one": model})
    monkeypatch.setattr(controls, "voices", lambda _: ["anna"])
    ready = {block.elem_id: block for block in build_page(controls).blocks.values() if getattr(block, "elem_id", None)}
    assert ready["speak"].interactive and ready["speak"].value == "Speak" and ready["voice-a"].value == "anna"


def test_the_button_is_enabled_by_a_clip() -> None:
    assert _enable_speaking("clip.wav").interactive and not _enable_speaking(None).interactive


def test_bad_requests_are_refused_before_speech_is_generated(controls: Controls, tmp_path: Path) -> None:
    from gradio import Error

    soundfile.write(tmp_path / "long.flac", np.random.default_rng(0).normal(0, 0.1, 61 * 8000), 8000)
    (tmp_path / "none.wav").write_bytes(b"no sound")
    long, none = kept(controls, tmp_path / "long.flac"), kept(controls, tmp_path / "none.wav")
    good = {"text": HELLO, "model": "custom_voice", "voice": "anna", "other": NOBODY, "whose": None, "clip": None}
    good |= dict(zip(("said", "language", "temperature", "greedy", "seed"), PLAIN, strict=True))
    for wrong, message in (
        ({"text": " "}, "enter a text to speak"),
        ({"text": "a" * 101}, "101 characters; at most 100 are accepted"),
        ({"voice": "carl"}, "has no voice 'carl'"),
        ({"voice": CLIP}, "has no voice 'the reference clip'"),
        ({"model": "gone"}, "gone has no voice"),
        ({"other": "base", "whose": None}, "base has no voice None"),
        ({"model": "base", "voice": CLIP}, "record or upload a reference clip first"),
        ({"model": "base", "voice": CLIP, "clip": long}, "61 s or more; at most 60 s are read"),
        ({"model": "base", "voice": CLIP, "clip": none}, "cannot be used"),
        ({"model": "base", "voice": CLIP, "clip": f"{tmp_path}/long.flac"}, "has been removed; upload it again"),
        ({"said": "a" * 101}, "transcript of the clip has 101 characters; at most 100 are accepted"),
        ({"text": None}, "enter a text to speak"),
        ({"seed": -1}, "the seed -1 is not a number from 0"),
        ({"seed": None}, "the seed None is not a number"),
        ({"seed": float("nan")}, "the seed nan is not a number"),
        ({"seed": 2**63}, "is not a number from 0"),
        ({"temperature": 0}, "the temperature 0 is not above 0"),
        ({"temperature": "hot"}, "the temperature 'hot' is not above 0"),
    ):
        with pytest.raises(Error, match=message):
            speak(controls, *(good | wrong).values())


def test_the_width_of_a_card_is_its_duration_and_texts_are_escaped() -> None:
    one, two = Player("<b>a</b>", 2.0, (), "data:s", "data:p"), Player("b", 1.0, ("cut off",), "data:s", "data:p")
    assert [re.search(r"width: ([\d.]+)%", html)[1] for html in render_sides([one, two])] == ["100.0", "50.0"]  # type: ignore[index]
    assert "&lt;b&gt;a&lt;/b&gt;" in render_card(one, 2.0) and "cut off" not in render_card(one, 2.0)
    assert "1.00 s · cut off" in render_card(two, 2.0)
    assert render_sides([], "<i>") == ['<p class="working">&lt;i&gt;</p>', ""]
    silent = make_player("silent", "me", np.zeros(0, np.float32), 24000)
    assert silent.picture == "" and "width: 100.0%" in render_card(silent, 0.0)
