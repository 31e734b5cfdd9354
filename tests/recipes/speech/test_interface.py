"""Tests that evaluation and server need only the protocol of a speech model: both work with a tiny model, and without Qwen3-TTS."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.generate_command import QwenVoiceFolder
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel
from overtone.recipes.qwen3_tts.inference.synthesizer import Request, Synthesizer
from overtone.recipes.qwen3_tts.model.sampling_settings import SamplingSettings
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds
from overtone.recipes.speech.cli import evaluate
from overtone.recipes.speech.evaluation import samples_during_training, systems
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.voice_evaluation import EvaluationOptions, make_plan
from overtone.recipes.speech.frame_synthesizer import SpeechWithCodes
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechResult, SpeechSampling, Voice, VoiceFolder
from overtone.recipes.voice_clone.speech_registration import SPEECH
from tests import loopback
from tests.finetune import tiny
from tests.page_client import CLIP, speak, upload_file
from tests.recipes.voice_clone import tones
from tests.recipes.voice_clone.served import Served, running
from tests.recipes.voice_clone.tones import FRAME, RATE, TONES, ToneFolder, Tones, tone_folder

TEXT = "Never late."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tone_folder(tmp_path / "tones")


def spoken(text: str, speaker: str, seed: int = 0) -> np.ndarray:
    """The model's speech, generated in this process."""
    voice = Tones(ToneFolder(Path(), {"low": 110.0, "high": 440.0}))
    return voice.speak([SpeechRequest(text, speaker)], SpeechSampling(seed=seed))[0].wave


# --- evaluation


def write_rows(path: Path, clip: Path, *speakers: str) -> Path:
    """A text for each speaker with a recording and a reference clip. Tones do not support the language."""
    soundfile.write(clip, 0.3 * np.sin(2 * np.pi * 220 * np.arange(RATE) / RATE), RATE)
    row = {"text": TEXT, "language": "english", "audio": clip.name, "ref_audio": clip.name}
    path.write_text("".join(json.dumps(row | {"speaker": speaker}) + "\n" for speaker in speakers))
    return path


def test_a_model_with_the_protocol_is_evaluated(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, base = write_rows(tmp_path / "val.jsonl", tmp_path / "clip.flac", "Low", "High"), tone_folder(tmp_path / "base", bass=55.0)
    out = tmp_path / "evaluation"
    argv = ["--data", str(data), "--base", str(base), "--max-seconds", "0.5", "--batch", "1", "--out", str(out)]
    assert evaluate.evaluate(TONES, folder, argv) == 0
    found = json.loads((out / "evaluation.json").read_text())
    assert list(found["figures"]) == [systems.RECORDINGS, "tones", "base, zero-shot"]
    assert found["figures"]["tones"]["all"]["runaways"] == 100, "11 letters of 1/20 s do not end within 0.5 s"
    assert found["figures"]["tones"]["all"]["texts"] == 2 and (out / "evaluation.html").is_file()
    wave, rate = soundfile.read(out / "clips" / "tones" / "val-0001.flac", dtype="float32")
    assert rate == RATE and np.allclose(wave, spoken(TEXT[:10], "low"), atol=1e-4)
    cloned, _ = soundfile.read(out / "clips" / "base-zero-shot" / "val-0001.flac", dtype="float32")
    assert len(cloned) == len(wave) and not np.allclose(cloned, wave, atol=0.1), "at the pitch of the clip"
    assert any(note.startswith("Similarity by the model's own encoder was not measured") for note in found["notes"])
    shown = capsys.readouterr().out
    assert "tones: 2 of 2 texts spoken" in shown
    assert f"--base {base} clones each row's reference clip, because it was not trained with high, low.\n" in shown


def test_a_voice_is_compared_with_itself_before_training(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The export from which training started has the folder name of the new one, and another pitch."""
    data, base = write_rows(tmp_path / "val.jsonl", tmp_path / "clip.flac", "Low", "High"), tmp_path / "before" / folder.name
    tone_folder(base, low=90.0, high=300.0)
    out = tmp_path / "evaluation"
    argv = ["--data", str(data), "--base", str(base), "--max-seconds", "0.5", "--out", str(out)]
    assert evaluate.evaluate(TONES, folder, argv) == 0
    shown, found = capsys.readouterr().out, json.loads((out / "evaluation.json").read_text())
    sentence = f"--base {base} speaks by the names of the rows' speakers; it could also clone clips."
    assert f"{sentence}\n" in shown and sentence in found["notes"]
    assert list(found["figures"]) == [systems.RECORDINGS, "tones", "tones before training"]
    assert {(row["system"], row["base"]) for row in found["compared"]} == {("tones", "tones before training")}
    assert "Too few texts to compare with tones before training: " in shown
    waves = [soundfile.read(out / "clips" / name / "val-0001.flac", dtype="float32")[0] for name in ("tones", "tones-before-training")]
    assert np.allclose(waves[0], spoken(TEXT[:10], "low"), atol=1e-4) and not np.allclose(waves[1], waves[0], atol=0.1)
    page = (out / "evaluation.html").read_text()
    assert "before: Voice before training: tones; after: Trained voice: tones." in page
    assert not re.search("untrained|zero-shot|clones", page + (out / "evaluation.md").read_text(), re.IGNORECASE)


def test_a_checkpoint_is_compared_with_the_export_from_which_training_started(folder: Path, tmp_path: Path) -> None:
    """Both speak the rows by name, so they need no reference clips."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps(tiny.state(5, recipe="tones", recipe_state={"speakers": ["low"]})))
    (tmp_path / "val.jsonl").write_text(json.dumps({"text": TEXT, "speaker": "Low"}))
    options = EvaluationOptions(tmp_path / "val.jsonl", checkpoints="all", base=str(folder))
    plan = make_plan(TONES, tmp_path / "run", options)
    assert [(one.name, one.way, one.is_base) for one in plan.systems] == [
        ("step 5", "named", False),
        ("tones before training", "named", True),
    ]


def test_refusals_of_the_model_come_before_it_is_loaded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToneFolder, "open", lambda *_: pytest.fail("a model was loaded"))
    data = write_rows(tmp_path / "val.jsonl", tmp_path / "clip.flac", "Zed")
    for model, message in ((folder, r"val\.jsonl:1: speaker zed: there are low, high"), (tmp_path, r"no tones\.json in it")):
        with pytest.raises(UserError, match=message):
            evaluate.evaluate(TONES, model, ["--data", str(data), "--out", str(tmp_path / "out")])


def test_trained_speakers_come_from_the_recipe(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text(json.dumps(tiny.state(5, recipe="tones", recipe_state={"speakers": ["low"]})))
    (system,) = systems.find_systems(TONES, tmp_path, "all")
    systems.check_item(TONES, system, Item("1", TEXT, "low", "auto"))
    with pytest.raises(UserError, match="speaker 'high': .* was not trained with this speaker; its speakers are low"):
        systems.check_item(TONES, system, Item("1", TEXT, "high", "auto"))


def test_a_model_with_the_protocol_speaks_the_samples_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Tones] = []
    monkeypatch.setattr(ToneFolder, "open", lambda self: opened.append(Tones(self)) or opened[-1])
    first, second = samples_during_training.speak_prompts(TONES, folder, [TEXT, f"High|{TEXT}"])
    assert first.text.startswith("low, 0.55 s") and second.text.startswith("high, 0.55 s") and first.sound != second.sound
    assert [voice.closed for voice in opened] == [True]


# --- the server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tone_folder(tmp_path_factory.mktemp("tones") / "tones"), loopback.free_port()
    command = [sys.executable, "-m", tones.__name__, str(port), str(folder)]
    with running(command, port, tmp_path_factory.mktemp("serving")) as process:
        yield process


def test_a_model_with_the_protocol_is_served_to_the_client_of_openai(served: Served) -> None:
    import openai

    client = served.client()
    (model,) = client.models.list()
    assert (model.id, model.created, model.voices) == ("tones", 1_700_000_000, ["low", "high"])
    same = {"model": "tones", "input": TEXT, "response_format": "wav"}
    for voice, seed in (("low", 0), ("High", 0), ("low", 7)):
        wav = client.audio.speech.create(voice=voice, extra_body={"seed": seed}, **same).read()
        wave, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
        assert rate == RATE and np.allclose(wave, spoken(TEXT, voice.lower(), seed), atol=1e-4)
    with client.audio.speech.with_streaming_response.create(voice="low", **same | {"response_format": "pcm"}) as stream:
        assert len(b"".join(stream.iter_bytes())) == 2 * FRAME * len(TEXT)
    for wrong, field, message in (
        ({"voice": "anna"}, "voice", "'anna' does not exist; tones has low, high"),
        ({"extra_body": {"language": "english"}}, "language", "tones have none"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.audio.speech.create(**{"voice": "low", **same, **wrong})
        assert caught.value.param == field and message in caught.value.message


def test_the_page_offers_the_speakers_and_languages_of_the_model(served: Served, tmp_path: Path) -> None:
    html = served.ask("/")[2].decode()
    assert "as trained" in html and "english" not in html, "tones have no languages"
    left, right = speak(served.url, TEXT, ("tones", "low"), ("tones", "high"))
    assert "tones · low" in left and "0.55 s" in left and "cut off" not in left and "tones · high" in right
    write_rows(tmp_path / "val.jsonl", tmp_path / "clip.flac")
    clip = upload_file(served.url, tmp_path / "clip.flac")
    (card,) = speak(served.url, "x" * 30, ("tones", CLIP), clip=clip)
    assert re.search(r"1\.00 s · cut off", card)


def test_serving_a_model_does_not_import_others(served: Served) -> None:
    """Must run after the other tests of the server."""
    assert served.process.stdout is not None and served.end(signal.SIGTERM) == 0
    rest = served.process.stdout.read()
    modules = rest.rpartition("modules: ")[2].split()
    assert "serve: stopped" in rest and samples_during_training.SpeechSampling.__module__ in modules, "the list is of the server's process"
    qwen = {"qwen_tts", "torch", *(one.__module__ for one in (Synthesizer, SamplingSettings, ExportedModel, TokenIds))}
    assert qwen.isdisjoint(modules) and len(qwen) == 6


# --- the contract


def test_the_classes_of_the_recipe_implement_the_protocols() -> None:
    for protocol, ours in ((Voice, Synthesizer), (VoiceFolder, QwenVoiceFolder), (Voice, Tones), (VoiceFolder, ToneFolder)):
        names = {name for name in vars(protocol) if not name.startswith("_")}
        own = set(dir(ours)) | (set(ours.__dataclass_fields__) if hasattr(ours, "__dataclass_fields__") else set())
        assert len(names) >= 4 and names - own <= {"speakers"}, f"{ours.__name__} lacks {names - own}"


def test_requests_and_results_of_the_recipe_extend_those_of_the_protocol() -> None:
    assert {field.name for field in fields(Request)} - {field.name for field in fields(SpeechRequest)} == {"streamed_text"}
    assert {field.name for field in fields(SpeechWithCodes)} - {field.name for field in fields(SpeechResult)} == {"codes"}
    assert isinstance(SPEECH, SpeechRecipe) and SPEECH.trained_speakers({"speakers": [{"name": "anna"}]}) == ["anna"]
