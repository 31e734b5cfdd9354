"""Voices and chat models in memory."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

import overtone
from overtone.finetune.recipe import discovery
from overtone.finetune.storage.synthetic_audio_mark import read_synthetic_mark
from overtone.recipes.language import answer_generation
from tests.finetune import tiny
from tests.recipes.llm_sft.tiny_runs import write_base
from tests.recipes.voice_clone.tones import RATE, TONES, tone_folder


@pytest.fixture
def voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> overtone.VoiceModel:
    inference = replace(tiny.RECIPE.inference, speech=lambda: TONES)
    monkeypatch.setattr(discovery, "_read_verbs_file", lambda *_: inference)
    return overtone.load_voice(tone_folder(tmp_path / "tones"), recipe="voice_clone")


def test_a_voice_speaks_and_its_speech_is_saved_with_a_mark(voice: overtone.VoiceModel, tmp_path: Path) -> None:
    assert (voice.name, voice.speakers, voice.languages, voice.can_clone, voice.rate) == ("tones", ("low", "high"), (), True, RATE)
    assert repr(voice) == "VoiceModel('tones', speakers: low, high)"
    speech = voice.speak("Never late.", speaker="low")
    assert (speech.rate, speech.ended, speech.seconds) == (RATE, True, 0.55) and speech.wave.dtype == np.float32
    path = speech.save(tmp_path / "new" / "hello.wav")
    wave, rate = soundfile.read(path, dtype="float32")
    mark = read_synthetic_mark(path)
    assert rate == RATE and np.abs(wave - speech.wave).max() < 1e-4 and mark is not None and mark.model == "tones"
    shown = speech._repr_html_()
    assert base64.b64decode(shown.partition("base64,")[2].partition('"')[0]) == path.read_bytes()
    assert repr(speech) == "Speech(0.55 s at 24000 Hz)"
    with pytest.raises(overtone.UserError, match=r"hello\.mp3: speech is saved as \.wav; choose a name such as hello\.wav"):
        speech.save(tmp_path / "hello.mp3")
    with pytest.raises(overtone.UserError, match="is a file, not a folder"):
        speech.save(path / "hello.wav")


def test_the_arguments_of_speech_reach_the_model(voice: overtone.VoiceModel, tmp_path: Path) -> None:
    low = voice.speak("Never late.", speaker="low")
    clip = low.save(tmp_path / "clip.wav")
    cloned = voice.speak("Never late.", reference=clip)
    assert len(cloned.wave) == len(low.wave) and not np.array_equal(cloned.wave, low.wave)
    assert not np.array_equal(voice.speak("Never late.", speaker="low", seed=1).wave, low.wave)
    cut = voice.speak("Never late.", speaker="low", max_seconds=0.5)
    assert not cut.ended and cut.seconds == 0.5 and "cut off" in repr(cut)
    for given, message in (
        ({"speaker": "middle"}, "speaker middle: there are low, high"),
        ({"speaker": "low", "temperature": 0.0}, "--temperature 0 is out of range"),
        ({"speaker": "low", "seed": -1}, "--seed -1 is out of range"),
        ({"speaker": "low", "max_seconds": 0.0}, "--max-seconds 0 is out of range"),
    ):
        for speak in (voice.speak, voice.stream):  # a stream refuses before its first chunk, too
            with pytest.raises(overtone.UserError, match=message):
                speak("Hello", **given)  # type: ignore[arg-type]
    with pytest.raises(overtone.UserError, match="the text"):
        voice.speak("👋", speaker="low")


def test_a_stream_yields_the_wave_of_the_speech(voice: overtone.VoiceModel) -> None:
    stream, chunks = voice.stream("Never late.", speaker="high"), []
    with pytest.raises(StopIteration) as end:
        while True:
            chunks.append(next(stream))
    whole = voice.speak("Never late.", speaker="high")
    assert len(chunks) > 5 and np.array_equal(np.concatenate(chunks), whole.wave)
    assert np.array_equal(end.value.value.wave, whole.wave) and end.value.value.model == "tones"


def test_a_voice_is_closed_after_with(voice: overtone.VoiceModel) -> None:
    with voice as opened:
        assert opened is voice
    assert voice._voice.closed  # type: ignore[attr-defined]


def test_a_chat_model_answers_as_the_verb_does(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    with overtone.load_chat(base, recipe="llm_sft") as model:
        reply = model.chat("Who are you?", max_new_tokens=7)
        assert reply == model.chat([{"role": "user", "content": "Who are you?"}], max_new_tokens=7)
        stream, pieces = model.stream("Who are you?", max_new_tokens=7), []
        with pytest.raises(StopIteration) as end:
            while True:
                pieces.append(next(stream))
        assert "".join(pieces) == reply.text == str(reply) == str(end.value.value) and repr(model) == "ChatModel('base')"
        with pytest.raises(overtone.UserError, match="--top-p 2: must be a probability"):
            model.chat("Hello", top_p=2.0)
    loaded = answer_generation.load_model(base)
    ids = answer_generation.tokenize_prompt(answer_generation.make_row("Who are you?", None, loaded.tokenizer), loaded.tokenizer)
    answer = answer_generation.generate_answer(loaded, ids, 7)
    assert (reply.text, reply.ended) == (answer.text, answer.ended)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    with pytest.raises(overtone.UserError, match="its recipe llm_sft makes no voice; overtone.load_chat loads"):
        overtone.load_voice(base, recipe="llm_sft")
    with pytest.raises(overtone.UserError, match="its recipe .*byte_model cannot chat; overtone.load_voice loads"):
        overtone.load_chat(base, recipe=tiny.FOLDER)
    with pytest.raises(overtone.UserError, match="is not an exported model"):
        overtone.load_voice(base)
    with pytest.raises(overtone.UserError, match="no-such-model"):
        overtone.load_chat(tmp_path / "no-such-model")
