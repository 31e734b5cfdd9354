"""Tests of `overtone.recipes.speech.evaluation.systems`, with clips of a real model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.storage import demo_models
from overtone.recipes.speech.evaluation import systems
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.systems import System
from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.voice_clone.speech_registration import SPEECH
from tests.finetune import tiny
from tests.recipes.voice_clone.tones import TONES, ToneFolder, tone_folder

BRIEF = SpeechSampling(max_seconds=0.3)


@pytest.fixture(scope="module")
def untrained(fresh: Any, export: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of an untrained model with the speakers anna and bert."""
    return export(fresh, "custom_voice", tmp_path_factory.mktemp("untrained") / "voice")


def run_with(folder: Path, *steps: int) -> Path:
    """A run whose checkpoints have only the names of the trained speakers."""
    for step in steps:
        checkpoint = folder / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        state = tiny.state(step, recipe="voice_clone", recipe_state={"speakers": [{"name": "anna"}]})
        (checkpoint / "state.json").write_text(json.dumps(state))
    return folder


def test_an_export_is_one_system(untrained: Path) -> None:
    (found,) = systems.find_systems(SPEECH, untrained, None)
    assert (found.name, found.way, found.step) == ("voice", "named", None)
    with pytest.raises(UserError, match="is one exported model; give the folder of a run"):
        systems.find_systems(SPEECH, untrained, "all")


def test_checkpoints_are_systems_by_step(tmp_path: Path) -> None:
    found = systems.find_systems(SPEECH, run_with(tmp_path, 200, 100), "all")
    assert [(system.name, system.step) for system in found] == [("step 100", 100), ("step 200", 200)]


@pytest.mark.parametrize("steps", ["300", "100,", "best", "-100", "100;200"])
def test_unknown_checkpoints_are_refused_with_those_that_exist(tmp_path: Path, steps: str) -> None:
    with pytest.raises(UserError, match=r"--checkpoints .*: give all, or steps separated by commas; existing steps: 100, 200"):
        systems.find_systems(SPEECH, run_with(tmp_path, 100, 200), steps)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model"):
        systems.find_systems(SPEECH, tmp_path, None)


def test_only_a_base_can_clone(untrained: Path, nano: Path) -> None:
    assert systems.untrained_system(SPEECH, nano).way == "cloned"
    with pytest.raises(UserError, match=f"--base {untrained}: this model cannot clone"):
        systems.untrained_system(SPEECH, untrained)


def test_a_base_speaks_by_name_if_it_was_trained_with_all_speakers(tmp_path: Path) -> None:
    both, other = tone_folder(tmp_path / "a" / "me"), tone_folder(tmp_path / "me", low=100.0)
    speaking = systems.find_systems(TONES, other, None)
    found, note = systems.find_base(TONES, both, {"low", "high"}, speaking)
    assert (found.name, found.way, found.is_base, found.title) == ("me before training", "named", True, "Voice before training: me")
    assert note == f"--base {both} speaks by the names of the rows' speakers; it could also clone clips."
    found, note = systems.find_base(TONES, both, {"low", "zed"}, speaking)
    assert (found.name, found.way, found.is_base, found.title) == ("me, zero-shot", "cloned", True, "Untrained base: me")
    assert note == f"--base {both} clones each row's reference clip, because it was not trained with zed."
    assert systems.find_base(TONES, both, (), speaking)[1] == f"--base {both} clones each row's reference clip."
    with pytest.raises(UserError, match=f"--base {other}: this is the model of --model; give the one from which training started"):
        systems.find_base(TONES, other, {"low"}, speaking)


def test_numbers_of_a_released_model_are_no_trained_voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToneFolder, "first_speaker", None)
    found, note = systems.find_base(TONES, tone_folder(tmp_path / "released"), {"low"}, [])
    assert found.way == "cloned" and note.endswith(" clones each row's reference clip.")


def test_a_base_that_only_names_other_speakers_is_refused(untrained: Path, nano: Path) -> None:
    found, note = systems.find_base(SPEECH, untrained, {"anna"}, [])
    assert found.way == "named" and note == f"--base {untrained} speaks by the names of the rows' speakers."
    assert systems.find_base(SPEECH, nano, {"anna"}, [])[1] == f"--base {nano} clones each row's reference clip."
    message = (
        rf"--base {untrained}: has no zed among its speakers \(anna, bert\), and cannot clone a clip; give the export or the Base model"
    )
    with pytest.raises(UserError, match=message):
        systems.find_base(SPEECH, untrained, {"zed", "anna"}, [])


def test_no_two_systems_have_the_same_name_or_folder(tmp_path: Path) -> None:
    names = ["me before training", "Me before: training", "through the codec", "step 5"]
    found = systems.number_repeated([System(name, tmp_path, "named") for name in names])
    assert [system.name for system in found] == ["me before training", "Me before: training (2)", "through the codec (2)", "step 5"]
    folders = {systems.slug(name) for name in (systems.RECORDINGS, systems.THROUGH_CODEC, *(system.name for system in found))}
    assert len(folders) == 6


def test_items_that_a_system_cannot_speak_are_refused(untrained: Path, nano: Path, tmp_path: Path) -> None:
    (named,), cloning = systems.find_systems(SPEECH, untrained, None), systems.untrained_system(SPEECH, nano)
    systems.check_item(SPEECH, named, Item("1", "Hello.", "anna", "english"))
    for system, item, message in (
        (named, Item("1", "Hello.", "zed", "auto"), "does not have this speaker; it has anna, bert"),
        (named, Item("1", "Hello.", "anna", "dutch"), "is not known to this model"),
        (cloning, Item("1", "Hello.", "zed", "auto"), "no reference audio to clone from"),
        (systems.find_systems(SPEECH, run_with(tmp_path, 5), "all")[0], Item("1", "Hello.", "zed", "auto"), "its speakers are anna"),
    ):
        with pytest.raises(UserError, match=message):
            systems.check_item(SPEECH, system, item)


@pytest.mark.parametrize(
    "state", [{}, {"speakers": None}, {"speakers": [{"clips": 3}]}, {"speakers": ["anna"]}, {"speakers": [{"name": 3}]}, {"speakers": []}]
)
def test_a_state_that_names_no_speakers_is_refused(state: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems.checkpoint, "read_state", lambda _: {"recipe_state": state})
    system = System("1", tmp_path / "step-00000001", "named", step=1)
    with pytest.raises(UserError, match=r"step-00000001/state\.json: recipe_state names no speakers; .*, choose another checkpoint"):
        systems.check_item(SPEECH, system, Item("1", "Hello.", "anna", "english"))


def test_the_encoder_is_that_of_the_base_in_the_card(untrained: Path, nano: Path, tmp_path: Path) -> None:
    (named,) = systems.find_systems(SPEECH, untrained, None)
    with pytest.raises(UserError, match=r"the base in overtone\.json cannot be used .*; give --base FOLDER"):
        systems.find_encoder_folder(SPEECH, named)
    (untrained / CARD).write_text(json.dumps({"recipe": "voice_clone", "base": {"source": str(nano), "revision": None}}))
    assert systems.find_encoder_folder(SPEECH, named) == nano.resolve()
    assert systems.find_encoder_folder(SPEECH, systems.untrained_system(SPEECH, nano)) == nano


def test_a_real_model_speaks_all_items_into_files(untrained: Path, tmp_path: Path) -> None:
    items = [Item("b-1", "Hi.", "bert", "english"), Item("a-1", "A longer text.", "anna", "auto"), Item("a-2", "Hi.", "anna", "english")]
    (named,) = systems.find_systems(SPEECH, untrained, None)
    with systems.open_export(SPEECH, named, tmp_path) as folder:
        takes = list(systems.speak(SPEECH, named, folder, items, BRIEF, 2, tmp_path / "clips"))
    assert [take.item.key for take in takes] == ["a-1", "a-2", "b-1"], "long texts first"
    for take in takes:
        samples, rate = soundfile.read(take.path, dtype="float32")
        assert rate == 24_000 and take.path.parent == tmp_path / "clips" and 0 < len(samples) <= 0.32 * rate and np.ptp(samples) > 0
    assert not all(take.ended for take in takes), "an untrained model does not end within 0.3 s"


def test_a_name_is_converted_to_a_folder_name() -> None:
    assert systems.slug("Step 100, zero/shot…") == "step-100-zero-shot"


def test_systems_have_titles_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    demo = demo_models.cache() / "qwen3-tts-demo-base-0123abcd"
    assert System("step 300", tmp_path, "named", 300).title == "Trained voice at step 300"
    assert System("me-too", tmp_path / "me-too", "named").title == "Trained voice: me-too"
    assert System(f"{demo.name}, zero-shot", demo, "cloned", is_base=True).title == "Untrained base: qwen3-tts-demo-base"
    assert System("my-base, zero-shot", tmp_path / "my-base", "cloned", is_base=True).title == "Untrained base: my-base"


def test_a_base_without_a_speaker_encoder_is_noted_but_damaged_weights_are_an_error(
    nano: Path, fresh: Any, export: Any, tmp_path: Path
) -> None:
    voice, damaged = export(fresh, "custom_voice", tmp_path / "me"), tmp_path / "damaged"
    (voice / CARD).write_text(json.dumps({"base": {"source": str(voice), "revision": None}}))
    found, notes = systems.find_encoder(SPEECH, [System("me", voice, "named")])
    assert found is None and f"base of me {voice}: " in notes[0] and "only those have the speaker encoder" in notes[0]
    shutil.copytree(nano, damaged)
    (damaged / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="--base .*model.safetensors"):
        systems.find_encoder(SPEECH, [System("damaged, zero-shot", damaged, "cloned", is_base=True)])
